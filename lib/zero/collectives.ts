// The interface of process groups for ZeRO: collectives on flat tensors in the order of a stream.
import type { Stream } from '../runtime/stream.js';
import type { View } from '../runtime/view.js';
import type { Tensor } from '../tensor/index.js';
import { viewOf } from '../tensor/ops/shapes.js';
import { noteChanged } from '../tensor/tape.js';

/** A running collective. */
export interface Work {
  /**
   * Makes later work of `stream` see the result. Blocks on the CPU. Throws the job's failure
   * (DS_COMM).
   */
  wait(stream: Stream): void;
}

export interface At {
  /** The collective starts after the work that is enqueued on `stream`. */
  stream: Stream;
  /** Unit and purpose. Errors name it, and ranks compare it. */
  purpose: string;
}

/** Every rank calls the same collectives in the same order. Tensors are flat and contiguous. */
export interface Collectives {
  readonly rank: number;
  readonly size: number;
  /** Copies the `tensor` of rank `root` to every rank. */
  broadcast(tensor: View, root: number, at: At): Work;
  allReduce(tensor: Tensor, at: At): Work;
  /**
   * Writes this rank's part of `input` [size * n], summed over all ranks, to `output` [n]. `output`
   * may be that part of `input`.
   */
  reduceScatter(output: Tensor, input: Tensor, at: At): Work;
  /** Sends part j of `input` [size * n] to part `rank` of rank j's `output`. */
  allToAll(output: View, input: View, at: At): Work;
  /**
   * Gathers every rank's `input` [n] into `output` [size * n]. `input` may be its part of `output`.
   */
  allGather(output: View, input: View, at: At): Work;
}

/**
 * Copies the values of rank `root` to every rank, in the order of the compute stream. `values` may
 * belong to an engine's parameter.
 */
export function takeOver(group: Collectives, values: Tensor, root = 0): void {
  if (group.size === 1) return;
  const { compute } = values.device;
  const memory = viewOf(values, values.shape, values.strides);
  group.broadcast(memory, root, { stream: compute, purpose: 'values of one rank' }).wait(compute);
  noteChanged(values);
}
