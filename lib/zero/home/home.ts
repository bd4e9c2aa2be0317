// The interface of a home: stores optimizer state and runs its updates.
import type { UpdateTensors } from '../../optim/optimizer.js';
import type { UpdateKernels } from '../../optim/update-kernels.js';
import type { DType } from '../../runtime/dtype.js';
import type { Stream } from '../../runtime/stream.js';
import type { Tensor } from '../../tensor/index.js';
import type { Fragment, GroupRange } from '../layout.js';
import type { Partition } from '../partition.js';
import type { Bytes, LentState } from './lent-state.js';

/** The tensors of a tile's update, except the step decision on its gradient. */
export type TileTensors = Omit<UpdateTensors, 'control'>;

/** A part of a partition that is updated at once. */
export interface HomeTile {
  readonly range: GroupRange;
}

/**
 * Stores master weights and optimizer state of partitions, and runs their updates in the order of
 * its own stream. A schedule (schedule/schedule.ts) decides when partitions are updated. Methods do
 * not block the host unless their comment states it; events order the work.
 */
export interface Home {
  /** Enqueue in the home's order. */
  readonly kernels: UpdateKernels;
  /** Bytes in use, by location. */
  readonly bytes: Bytes;
  /** Adds a partition: allocates its master weights and state. */
  adopt(partition: Partition): void;
  /**
   * Writes the master weights of a fragment. `values`: [numel] f32 on the device, read on the
   * compute stream.
   */
  writeMaster(partition: Partition, fragment: Fragment, values: Tensor): void;
  /**
   * Moves the gradient of `partition` to the memory that updates read. It is complete after
   * partition.ready.
   */
  receive(partition: Partition): void;
  /**
   * Returns `control`, written on the compute stream, in memory that kernels read. Called once per
   * update, after the last receive().
   */
  takeControl(control: Tensor): Tensor;
  /** The tiles of a partition, updated one after another. */
  tilesOf(partition: Partition): readonly HomeTile[];
  /** Returns the gradient and state of a tile for kernels enqueued until release(). */
  acquire(partition: Partition, tile: HomeTile): TileTensors;
  /** Called after all kernels of this pass over a tile are enqueued. */
  release(tile: TileTensors): void;
  /** Called after the new weights of a tile are enqueued. Copies them to their destination. */
  deliver(partition: Partition, tile: HomeTile): void;
  /**
   * Called after all tiles are delivered and nothing reads the gradient. Returns the stream that
   * orders the change of the weights.
   */
  finish(partition: Partition): Stream;
  /** Called before weights are read. Later compute work sees the updated weights. */
  awaitWeights(partition: Partition): void;
  /**
   * Returns the gradient between receive() and the update, with a new reference; else null.
   * Complete on return.
   */
  gradOf(partition: Partition): Tensor | null;
  /** Whether lend() returns a copy, which needs memory. */
  readonly lendsCopies: boolean;
  /** Lends the master weights (name "master") or the state `name` of a fragment. */
  lend(partition: Partition, fragment: Fragment, name: string): LentState;
  /**
   * Refreshes the partition's weights after an external change of master weights, such as a load.
   */
  refresh(partition: Partition): void;
  /** Returns a flat tensor of zeros in the home's memory. The caller releases it. */
  allocate(numel: number, dtype: DType): Tensor;
  /**
   * Copies `from` of the home to `to` on the device, after the home's kernels so far. Later compute
   * work sees it.
   */
  toDevice(to: Tensor, from: Tensor): void;
  /**
   * Copies `from` on the device to `to` of the home, after compute work so far. Later kernels of
   * the home see it.
   */
  toHome(to: Tensor, from: Tensor): void;
  /** Blocks until all enqueued work has run. */
  synchronize(): void;
  dispose(): void;
}
