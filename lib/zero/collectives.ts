// The interface of process groups for ZeRO: collectives on flat tensors in the order of a stream.
import type { Stream } from '../runtime/stream.js';
import type { View } from '../runtime/view.js';
import type { Tensor } from '../tensor/index.js';
import { viewOf } from '../tensor/ops/shapes.js';
import { noteChanged } from '../tensor/tape.js';

export interface Work {
  /** Later work of `stream` sees the result. Blocks on the CPU. Throws DS_COMM. */
  wait(stream: Stream): void;
}

export interface CollectivePlace {
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
  broadcast(tensor: View, root: number, at: CollectivePlace): Work;
  allReduce(tensor: Tensor, at: CollectivePlace): Work;
  /** Sums `input` [size * n] over ranks; `output` [n] gets this rank's part, also in place. */
  reduceScatter(output: Tensor, input: Tensor, at: CollectivePlace): Work;
  /** Sends part j of `input` [size * n] to part `rank` of rank j's `output`. */
  allToAll(output: View, input: View, at: CollectivePlace): Work;
  /** Gathers every rank's `input` [n] into `output` [size * n], also in place. */
  allGather(output: View, input: View, at: CollectivePlace): Work;
}

/** Copies the values of rank `root` to every rank, in the order of the compute stream. */
export function takeOver(group: Collectives, values: Tensor, root = 0): void {
  if (group.size === 1) return;
  const { compute } = values.device;
  const memory = viewOf(values, values.shape, values.strides);
  group.broadcast(memory, root, { stream: compute, purpose: 'values of one rank' }).wait(compute);
  noteChanged(values);
}
