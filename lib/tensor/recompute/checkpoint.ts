// Activation checkpointing: forward keeps only the inputs, backward reruns the function.

import { postponeCalls } from '../../runtime/deferred-calls.js';
import { argumentError } from '../../runtime/input-errors.js';
import { requireType } from '../../runtime/require-type.js';
import { required } from '../../runtime/required.js';
import { backward, callHook, holdingHooks } from '../backward.js';
import { batchInvariant, isBatchInvariant } from '../batch-invariant.js';
import { leavingNothing } from '../grad-sink.js';
import type { KeptResults } from '../kept-results.js';
import { type RandomPoint, randomPoint, replayRandom } from '../random.js';
import { scope } from '../scope.js';
import {
  beginGraph,
  type GradSink,
  isGradEnabled,
  noGrad,
  recomputing,
  record,
  withGrad,
} from '../tape.js';
import { Tensor } from '../tensor.js';
import { currentPolicy } from './policy.js';
import type { KeptInputs } from './store.js';
import { unwatchedSegment, type WatchedSegment } from './watch.js';

const listOf = (result: Tensor | Tensor[]): Tensor[] => (Array.isArray(result) ? result : [result]);

const wantsGrad = (input: unknown): boolean => input instanceof Tensor && input.requiresGrad;

/**
 * Calls fn(...inputs) without keeping the tensors of its backward. The backward recomputes them
 * from the same random state and frees them at once. fn reruns to its end, but ops after the last
 * one that backward reads are not computed. Inputs may be tensors or any other values, null
 * included. configure() selects the stored tensors and their place. Parameters used inside get
 * their gradients from the nested backward. `fn` must be a function of its inputs and parameters
 * only. Throws DS_ARGUMENT for tensors inside an array or a plain object. Source: Chen et al. 2016;
 * the rule for inputs is DeepSpeed's.
 */
export function checkpoint<Inputs extends readonly unknown[], Result extends Tensor | Tensor[]>(
  fn: (...inputs: Inputs) => Result,
  ...inputs: Inputs
): Result {
  requireType('checkpoint', fn, 'function');
  return recording(fn, inputs, null);
}

/**
 * @internal Returns fn(...inputs) of each part, each a checkpoint(). A parameter that fn uses is
 * complete in a backward after the last of the parts, not after each of them.
 */
export function checkpointParts<Inputs extends readonly unknown[]>(
  fn: (...inputs: Inputs) => Tensor,
  parts: readonly Inputs[],
): Tensor[] {
  const shared: SharedLeaves = { left: parts.length, complete: new Set() };
  return parts.map((inputs) => recording(fn, inputs, shared));
}

/** Parameters that several segments of one forward use. */
interface SharedLeaves {
  /** Segments without a backward yet. */
  left: number;
  /** Leaves with gradients of the other segments. */
  readonly complete: Set<Tensor>;
}

function recording<Inputs extends readonly unknown[], Result extends Tensor | Tensor[]>(
  fn: (...inputs: Inputs) => Result,
  inputs: Inputs,
  shared: SharedLeaves | null,
): Result {
  if (!isGradEnabled()) return scope(() => fn(...inputs));
  inputs.forEach(requirePlain);
  const tensors = inputs.filter((input) => input instanceof Tensor);
  const { store, watch, keepsakes: open } = currentPolicy();
  const isInvariant = isBatchInvariant();
  const kept = store.keep(inputs);
  const keepsakes = open(tensors[0]?.device ?? null);
  const segment = tensors[0] ? watch.open(tensors[0].device) : unwatchedSegment;
  const recorded: Recorded = {
    run: (given) => batchInvariant(() => fn(...(given as Inputs)), isInvariant),
    kept,
    keepsakes,
    segment,
    wanting: inputs.flatMap((input, i) => (wantsGrad(input) ? [i] : [])),
    at: randomPoint(),
    shared,
  };
  try {
    segment.retain();
    kept.retain();
    keepsakes.retain();
    const forward = (): Result => scope(() => noGrad(() => fn(...inputs)));
    const result = segment.forward(() => keepsakes.gather(forward));
    const outputs = listOf(result).map((out) =>
      inputs.includes(out) || out.requiresGrad ? out.detach() : out,
    );
    const wanting = tensors.filter(wantsGrad);
    const tracked = wanting.length > 0 ? wanting : [anchor(outputs)];
    record('checkpoint', tracked, outputs, [kept, keepsakes, segment], (grads, sink) =>
      replay(recorded, grads, sink),
    );
    return (Array.isArray(result) ? outputs : outputs[0]) as Result;
  } finally {
    kept.release();
    keepsakes.release();
    segment.release();
  }
}

/** A tensor inside a collection would be neither kept nor differentiated. */
function requirePlain(input: unknown, i: number): void {
  if (input === null || typeof input !== 'object' || input instanceof Tensor) return;
  const isPlain = Array.isArray(input) || Object.getPrototypeOf(input) === Object.prototype;
  if (!isPlain || !Object.values(input).some((item) => item instanceof Tensor)) return;
  throw argumentError(
    'checkpoint',
    'tensors as separate inputs',
    `tensors inside input ${i}`,
    'Spread them: checkpoint(fn, ...tensors).',
  );
}

/** An empty leaf that puts the segment into the graph if only its parameters require gradients. */
function anchor(outputs: readonly Tensor[]): Tensor {
  const { dtype, device } = required(outputs[0]);
  return Tensor.empty([0], dtype, device).requireGrad();
}

interface Recorded {
  run: (inputs: readonly unknown[]) => Tensor | Tensor[];
  kept: KeptInputs;
  keepsakes: KeptResults;
  segment: WatchedSegment;
  /** Positions of the inputs that require gradients; input i of the node is wanting[i]. */
  wanting: readonly number[];
  at: RandomPoint;
  /** null: no other segment uses the parameters. */
  shared: SharedLeaves | null;
}

/**
 * Reruns the segment on detached inputs, as far as backward needs it, and runs a backward through
 * it.
 */
function replay(
  { run, kept, keepsakes, segment, wanting, at, shared }: Recorded,
  grads: readonly (Tensor | null)[],
  sink: GradSink,
): void {
  scope(() => {
    const inputs = [...kept.restore()];
    keepsakes.restore();
    const standIns = wanting.map((i) => (inputs[i] as Tensor).detach());
    beginGraph(standIns, (arrived) =>
      arrived.forEach((grad, i) => {
        if (grad) sink.give(i, grad);
      }),
    );
    standIns.forEach((standIn, i) => {
      inputs[required(wanting[i])] = standIn;
    });
    const forward = (): Tensor | Tensor[] =>
      replayRandom(at, () => withGrad(true, () => scope(() => run(inputs))));
    const again = segment.recompute(() =>
      recomputing(() => postponeCalls(() => keepsakes.handOut(forward))),
    );
    const roots: Tensor[] = [];
    const seeds: Tensor[] = [];
    listOf(again).forEach((out, i) => {
      const grad = grads[i];
      if (!grad || !out.gradFn) return;
      roots.push(out);
      seeds.push(grad);
    });
    // Recomputed tensors are freed at once: the gradients that read them are not deferred.
    if (roots.length > 0) {
      leavingNothing(() => withShared(shared, () => backward(roots, seeds)));
    }
  });
}

/** Runs the backward `body` of one segment; that of the last one calls the hooks of all. */
function withShared(shared: SharedLeaves | null, body: () => void): void {
  if (!shared) {
    body();
    return;
  }
  holdingHooks(shared.complete, body);
  if (--shared.left > 0) return;
  for (const leaf of shared.complete) callHook(leaf);
}
