// The tape: ops record a backward function and the destinations of gradients; backward() replays
// it.

import { DsError } from '../errors.js';
import type { Device } from '../runtime/device.js';
import type { DType } from '../runtime/dtype.js';
import { requireEnded, requireType } from '../runtime/require-type.js';
import { required } from '../runtime/required.js';
import { currentScope } from './scope.js';
import type { Tensor } from './tensor.js';

/**
 * Computes input gradients from output gradients. `grads[i]` is the borrowed gradient of output i,
 * or null. Results go to the sink.
 */
export type Backward = (grads: readonly (Tensor | null)[], sink: GradSink) => void;

/** Backward of an op with one output. It runs only if that output has a gradient. */
type SingleBackward = (grads: readonly [Tensor], sink: GradSink) => void;

/** Destination of the gradients of a backward function's inputs. */
export interface GradSink {
  /** Returns whether input `i` needs a gradient. */
  needs(i: number): boolean;
  /** Returns the shape of input `i` and of its gradient. */
  shapeOf(i: number): readonly number[];
  /**
   * Lets `body` write the gradient of input `i` in place: into `out`, adding if `accumulate` is
   * true. Not called if the input needs no gradient. `out` has the input's shape and dtype and is
   * contiguous.
   */
  write(i: number, body: (out: Tensor, accumulate: boolean) => void): void;
  /**
   * Writes the gradient of input `i` as write() does. If input `i` is a leaf, and deferGradients()
   * has set a collector, the collector runs `body` later. `reads` lists all tensors that `body`
   * reads except the node's own leaf inputs.
   */
  writeDeferred(
    i: number,
    reads: readonly Saved[],
    body: (out: Tensor, accumulate: boolean) => void,
  ): void;
  /**
   * Reports that the gradient of input `i` is complete while the node has more work. Work that
   * waits only for this gradient may continue.
   */
  markComplete(i: number): void;
  /**
   * Adds `grad` to the gradient of input `i`; copies it only if needed. `grad` stays the caller's,
   * and several inputs may share it.
   */
  addGrad(i: number, grad: Tensor): void;
}

let sequence = 0;
/** Whether the body of a runRecomputation() is running. */
let isInRecomputation = false;
let enabled = true;

/** Returns the sequence number of the last recorded node or in-place change; numbers increase. */
export function latestSequence(): number {
  return sequence;
}

/**
 * Records a change of the values of `tensor`: a backward that has saved them throws. Each change
 * has a unique number.
 */
export function markChanged(tensor: Tensor): void {
  tensor.changedAt = ++sequence;
}

/** Runs `body`, which recomputes values of the forward for a backward. */
export function runRecomputation<T>(body: () => T): T {
  const outer = isInRecomputation;
  isInRecomputation = true;
  try {
    return body();
  } finally {
    isInRecomputation = outer;
  }
}

/** Returns whether the body of a runRecomputation() is running. */
export function isRecomputing(): boolean {
  return isInRecomputation;
}

/** Returns whether ops are recorded for backward; false inside noGrad(). */
export function isGradEnabled(): boolean {
  return enabled;
}

/** Runs `body`, which is synchronous, without recording. Throws DS_ARGUMENT for a promise. */
export function noGrad<T>(body: () => T): T {
  requireType('noGrad', body, 'function');
  return requireEnded('noGrad', withGrad(false, body), {
    consequence: 'its later operations would be recorded',
    hint: 'Write await outside, and noGrad() around each synchronous part.',
  });
}

/** Runs `body` with recording switched on or off. */
export function withGrad<T>(on: boolean, body: () => T): T {
  requireType('withGrad', body, 'function');
  const outer = enabled;
  enabled = on;
  try {
    return body();
  } finally {
    enabled = outer;
  }
}

/** An object that a node holds until its backward has run: a tensor, or a holder of tensors. */
export interface Saved {
  /** Sequence number of the last in-place change; absent if the values cannot change. */
  readonly changedAt?: number;
  /** Adds a reference for a node. */
  retain(): unknown;
  /** Removes the reference of a node. */
  release(): void;
}

/** A node's record of an input: the destination of its gradient, not its values. */
export interface Edge {
  readonly shape: readonly number[];
  readonly dtype: DType;
  readonly device: Device;
  readonly requiresGrad: boolean;
  readonly fn: GradFn | null;
  readonly index: number;
  /** The input itself if it is a leaf that requires a gradient. */
  readonly leaf: Tensor | null;
}

/** Only the tape sets gradFn. */
const nodeOf = ({ gradFn }: Tensor): GradFn | null => gradFn as GradFn | null;

function edgeTo(input: Tensor): Edge {
  const { shape, dtype, device, requiresGrad, gradIndex: index } = input;
  const fn = nodeOf(input);
  const leaf = requiresGrad && !fn ? input.retain() : null;
  if (fn) fn.readers++;
  return { shape, dtype, device, requiresGrad, fn, index, leaf };
}

function edgesTo(inputs: readonly Tensor[]): Edge[] {
  const edges = new Array<Edge>(inputs.length);
  for (let i = 0; i < inputs.length; ++i) edges[i] = edgeTo(required(inputs[i]));
  return edges;
}

function emptyGrads(outputs: number): null[] {
  return outputs === 1 ? [null] : new Array<null>(outputs).fill(null);
}

function needsGrad(inputs: readonly Tensor[]): boolean {
  for (let i = 0; i < inputs.length; ++i) if (required(inputs[i]).requiresGrad) return true;
  return false;
}

/** A recorded op. Holds its saved tensors until its backward has run or its scope ends. */
export class GradFn {
  /** Position in the order of recording. */
  readonly sequence = ++sequence;
  /** Gradients of the outputs, filled while backward runs; owned. */
  readonly grads: (Tensor | null)[];
  /** @internal One for each input. */
  readonly edges: readonly Edge[];
  /** Whether its backward has run, or its scope has ended. */
  isReleased = false;
  /** Runs just before the backward of this node. */
  before: (() => void) | null = null;
  /** Number of recorded ops that read an output and have not called markComplete() yet. */
  readers = 0;
  /** Runs when all readers have called markComplete(), perhaps before they have ended. */
  whenComplete: (() => void) | null = null;

  /** Retains `saved` until the backward has run. `body` computes gradients of the inputs. */
  constructor(
    /** The op that recorded it. */
    readonly name: string,
    inputs: readonly Tensor[],
    outputs: number,
    private readonly saved: readonly Saved[],
    private readonly body: Backward,
  ) {
    this.grads = emptyGrads(outputs);
    this.edges = edgesTo(inputs);
    for (let i = 0; i < saved.length; ++i) required(saved[i]).retain();
  }

  /** Runs the backward once, and releases all saved tensors and gradients. */
  run(sink: GradSink): void {
    if (this.isReleased) {
      this.dropGrads();
      throw new DsError({
        code: 'DS_AUTOGRAD',
        op: this.name,
        expected: 'one backward through each graph',
        got: 'a second backward',
        hint: 'Run the forward again; saved tensors are freed as backward passes them.',
      });
    }
    this.requireUnchanged();
    this.before?.();
    this.body(this.grads, sink);
    this.release();
  }

  /** Frees saved tensors and gradients. Idempotent. */
  release(): void {
    if (this.isReleased) return;
    this.isReleased = true;
    this.dropGrads();
    for (const each of this.saved) each.release();
    for (const edge of this.edges) edge.leaf?.release();
  }

  /** Throws DS_AUTOGRAD if a saved tensor was changed in place after this node was recorded. */
  private requireUnchanged(): void {
    for (const { changedAt = 0 } of this.saved) {
      if (changedAt < this.sequence) continue;
      this.dropGrads();
      throw new DsError({
        code: 'DS_AUTOGRAD',
        op: this.name,
        expected: 'unchanged values from the forward, because backward reads them again',
        got: 'a tensor that was changed in place after the forward',
        hint: 'Change a clone(), use the form without "_", or change it after backward(). After a step or a load, run the forward again.',
      });
    }
  }

  private dropGrads(): void {
    for (let i = 0; i < this.grads.length; ++i) {
      this.grads[i]?.release();
      this.grads[i] = null;
    }
  }
}

/**
 * Puts outputs into the graph if recording is on and an input needs a gradient. `saved` holds the
 * tensors that the backward reads, until it has run.
 */
export function record(
  name: string,
  inputs: readonly Tensor[],
  outputs: readonly [Tensor],
  saved: readonly Saved[],
  backward: SingleBackward,
): void;
export function record(
  name: string,
  inputs: readonly Tensor[],
  outputs: readonly Tensor[],
  saved: readonly Saved[],
  backward: Backward,
): void;
export function record(
  name: string,
  inputs: readonly Tensor[],
  outputs: readonly Tensor[],
  saved: readonly Saved[],
  backward: Backward | SingleBackward,
): void {
  if (!enabled || !needsGrad(inputs)) return;
  const node = new GradFn(name, inputs, outputs.length, saved, backward as Backward);
  currentScope()?.adoptNode(node);
  attachOutputs(outputs, node);
}

/**
 * Makes `tensors` the start of a graph. When all nodes that use them have run, `arrive` receives
 * their gradients, borrowed (null for a missing gradient). Unlike a leaf's gradients, these are
 * never copied.
 */
export function beginGraph(
  tensors: readonly Tensor[],
  arrive: (grads: readonly (Tensor | null)[]) => void,
): void {
  const node = new GradFn('begin', [], tensors.length, [], arrive);
  currentScope()?.adoptNode(node);
  attachOutputs(tensors, node);
}

function attachOutputs(outputs: readonly Tensor[], node: GradFn): void {
  for (let i = 0; i < outputs.length; ++i) {
    const output = required(outputs[i]);
    output.requiresGrad = true;
    output.gradFn = node;
    output.gradIndex = i;
  }
}

/**
 * Calls `hook` when backward reaches `output`: before the op that produced it, and after earlier
 * hooks of that op.
 */
export function beforeBackward(output: Tensor, hook: () => void): void {
  const node = nodeOf(output);
  if (!node) return;
  const { before } = node;
  node.before = before
    ? () => {
        before();
        hook();
      }
    : hook;
}
