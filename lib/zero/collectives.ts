// What the stages need of a group of ranks: collectives on flat tensors, enqueued on a
// stream.
import type { Stream } from '../runtime/stream.js';
import type { View } from '../runtime/view.js';
import type { Tensor } from '../tensor/index.js';
import { viewOf } from '../tensor/ops/shapes.js';
import { noteChanged } from '../tensor/tape.js';

/** A collective under way. */
export interface Work {
  /**
   * Later work of `stream` sees its result. On the CPU it blocks. Throws the job's failure
   * (DS_COMM).
   */
  wait(stream: Stream): void;
}

export interface At {
  /** The collective starts after the work that `stream` holds. */
  stream: Stream;
  /** Which unit, and what for: named in errors, and compared between ranks. */
  purpose: string;
}

/** Every rank calls the same collectives in the same order. Tensors are flat and contiguous. */
export interface Collectives {
  readonly rank: number;
  readonly size: number;
  /** Every rank's `tensor` becomes that of rank `root`. */
  broadcast(tensor: View, root: number, at: At): Work;
  /** Sums `tensor` over all ranks, in place. */
  allReduce(tensor: Tensor, at: At): Work;
  /**
   * `output` [n] gets this rank's part of `input` [size * n], summed over all ranks; it may be its
   * place there.
   */
  reduceScatter(output: Tensor, input: Tensor, at: At): Work;
  /** Part j of `input` [size * n] goes to part `rank` of rank j's `output`. */
  allToAll(output: View, input: View, at: At): Work;
  /** Puts every rank's `input` [n] into `output` [size * n]; `input` may be its place there. */
  allGather(output: View, input: View, at: At): Work;
}

/**
 * Every rank takes over the values of rank `root`, in the order of the compute stream; parameters
 * of an engine may be among them.
 */
export function takeOver(group: Collectives, values: Tensor, root = 0): void {
  if (group.size === 1) return;
  const { compute } = values.device;
  const memory = viewOf(values, values.shape, values.strides);
  group.broadcast(memory, root, { stream: compute, purpose: 'values of one rank' }).wait(compute);
  noteChanged(values);
}
