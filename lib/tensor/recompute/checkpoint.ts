// Activation checkpointing: forward keeps only the inputs, backward reruns the function.

import { deferCalls } from '../../runtime/deferred-calls.js';
import { argumentError } from '../../runtime/input-errors.js';
import { requireType } from '../../runtime/require-type.js';
import { required } from '../../runtime/required.js';
import { backward, callHook, holdHooks } from '../backward.js';
import { isBatchInvariant, runBatchInvariant } from '../batch-invariant.js';
import { withoutDeferral } from '../grad-sink.js';
import type { KeptResults } from '../kept-results.js';
import { type RandomPoint, randomPoint, replayRandom } from '../random.js';
import { scope } from '../scope.js';
import {
  beginGraph,
  type GradSink,
  isGradEnabled,
  noGrad,
  record,
  runRecomputation,
  withGrad,
} from '../tape.js';
import { Tensor } from '../tensor.js';
import { currentPolicy, segmentsAfter } from './policy.js';
import type { KeptInputs } from './store.js';
import { unwatchedSegment, type WatchedSegment } from './watch.js';

const listOf = (result: Tensor | Tensor[]): Tensor[] => (Array.isArray(result) ? result : [result]);

const needsGrad = (input: unknown): boolean => input instanceof Tensor && input.requiresGrad;

/**
 * Calls fn(...inputs) without keeping the tensors of its backward. The backward calls fn again from
 * the same random state to compute them, and frees them at once. It skips the kernels of ops whose
 * results it does not read. Inputs may be tensors or any other values, null included. configure()
 * selects the stored tensors and their memory. Parameters used inside get their gradients from the
 * nested backward. `fn` must be a function of its inputs and parameters only. Throws DS_ARGUMENT
 * for tensors inside an array or a plain object. Source: Chen et al. 2016; the rule for inputs is
 * DeepSpeed's.
 */
export function checkpoint<Inputs extends readonly unknown[], Result extends Tensor | Tensor[]>(
  fn: (...inputs: Inputs) => Result,
  ...inputs: Inputs
): Result {
  requireType('checkpoint', fn, 'function');
  return recordSegment(fn, inputs, null);
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
  return parts.map((inputs) => recordSegment(fn, inputs, shared));
}

/** Parameters that several segments of one forward use. */
interface SharedLeaves {
  /** Segments without a backward yet. */
  left: number;
  /** Leaves with gradients of the other segments. */
  readonly complete: Set<Tensor>;
}

function recordSegment<Inputs extends readonly unknown[], Result extends Tensor | Tensor[]>(
  fn: (...inputs: Inputs) => Result,
  inputs: Inputs,
  shared: SharedLeaves | null,
): Result {
  if (!isGradEnabled()) return scope(() => fn(...inputs));
  inputs.forEach(requirePlain);
  const tensors = inputs.filter((input) => input instanceof Tensor);
  const { store, watch, openKeptResults } = currentPolicy();
  const isInvariant = isBatchInvariant();
  const kept = store.keep(inputs);
  const keptResults = openKeptResults(tensors[0]?.device ?? null, segmentsAfter());
  const segment = tensors[0] ? watch.open(tensors[0].device) : unwatchedSegment;
  const recorded: RecordedSegment = {
    run: (replayInputs) => runBatchInvariant(() => fn(...(replayInputs as Inputs)), isInvariant),
    kept,
    keptResults,
    segment,
    wanting: inputs.flatMap((input, i) => (needsGrad(input) ? [i] : [])),
    at: randomPoint(),
    shared,
  };
  try {
    segment.retain();
    kept.retain();
    keptResults.retain();
    const forward = (): Result => scope(() => noGrad(() => fn(...inputs)));
    const result = segment.forward(() => keptResults.recordForward(forward));
    const outputs = listOf(result).map((out) =>
      inputs.includes(out) || out.requiresGrad ? out.detach() : out,
    );
    const wanting = tensors.filter(needsGrad);
    const tracked = wanting.length > 0 ? wanting : [createAnchor(outputs)];
    record('checkpoint', tracked, outputs, [kept, keptResults, segment], (grads, sink) =>
      replay(recorded, grads, sink),
    );
    return (Array.isArray(result) ? outputs : outputs[0]) as Result;
  } finally {
    kept.release();
    keptResults.release();
    segment.release();
  }
}

/** Throws DS_ARGUMENT for a tensor inside a collection: checkpoint() would not keep it. */
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

/** Creates an empty leaf that puts the segment into the graph if only parameters need gradients. */
function createAnchor(outputs: readonly Tensor[]): Tensor {
  const { dtype, device } = required(outputs[0]);
  return Tensor.empty([0], dtype, device).requireGrad();
}

interface RecordedSegment {
  run: (inputs: readonly unknown[]) => Tensor | Tensor[];
  kept: KeptInputs;
  keptResults: KeptResults;
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
  { run, kept, keptResults, segment, wanting, at, shared }: RecordedSegment,
  grads: readonly (Tensor | null)[],
  sink: GradSink,
): void {
  scope(() => {
    const inputs = [...kept.restore()];
    keptResults.restore();
    const standIns = wanting.map((i) => (inputs[i] as Tensor).detach());
    beginGraph(standIns, (arrived) =>
      arrived.forEach((grad, i) => {
        if (grad) sink.addGrad(i, grad);
      }),
    );
    standIns.forEach((standIn, i) => {
      inputs[required(wanting[i])] = standIn;
    });
    const forward = (): Tensor | Tensor[] =>
      replayRandom(at, () => withGrad(true, () => scope(() => run(inputs))));
    const recomputedOutputs = segment.recompute(() =>
      runRecomputation(() => deferCalls(() => keptResults.replay(forward))),
    );
    const roots: Tensor[] = [];
    const seeds: Tensor[] = [];
    listOf(recomputedOutputs).forEach((out, i) => {
      const grad = grads[i];
      if (!grad || !out.gradFn) return;
      roots.push(out);
      seeds.push(grad);
    });
    // Recomputed tensors are freed at once: the gradients that read them are not deferred.
    if (roots.length > 0) {
      withoutDeferral(() => withShared(shared, () => backward(roots, seeds)));
    }
  });
}

/**
 * Runs the backward `body` of one segment. That of the last segment calls the hooks of all
 * segments.
 */
function withShared(shared: SharedLeaves | null, body: () => void): void {
  if (!shared) {
    body();
    return;
  }
  holdHooks(shared.complete, body);
  if (--shared.left > 0) return;
  for (const leaf of shared.complete) callHook(leaf);
}
