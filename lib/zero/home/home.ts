// Where optimizer state lives: the interface of a home, whatever its memory and whoever computes
// there.
import type { UpdateTensors } from '../../optim/optimizer.js';
import type { UpdateKernels } from '../../optim/update-kernels.js';
import type { DType } from '../../runtime/dtype.js';
import type { Stream } from '../../runtime/stream.js';
import type { Tensor } from '../../tensor/index.js';
import type { GroupRange, Piece } from '../layout.js';
import type { Partition } from '../partition.js';
import type { Bytes, LentState } from './lent-state.js';

/** What an update reads and writes of a tile, but for the step decision on its gradient. */
export type TileTensors = Omit<UpdateTensors, 'control'>;

/** A part of a partition that is updated at once. */
export interface HomeTile {
  readonly range: GroupRange;
}

/**
 * Keeps master weights and optimizer state of partitions, and runs their updates in the order of a
 * stream of its own. A home knows nothing of when partitions are updated: that is the schedule's
 * (schedule/schedule.ts). Nothing here waits for the host unless it says so: what comes and goes is
 * ordered by events.
 */
export interface Home {
  /** Enqueue in the home's order. */
  readonly kernels: UpdateKernels;
  /** Bytes kept, by where they are. */
  readonly bytes: Bytes;
  /** Takes over a partition: allocates its master weights and its state. */
  adopt(partition: Partition): void;
  /**
   * Sets the master weights of a piece: [numel] f32 on the device. Reads `values` on the compute
   * stream.
   */
  writeMaster(partition: Partition, piece: Piece, values: Tensor): void;
  /**
   * The gradient of `partition`, complete once partition.ready has been passed, comes to where
   * updates read it.
   */
  receive(partition: Partition): void;
  /**
   * `control`, written on the compute stream, where kernels read it. Once per update, after the
   * last receive().
   */
  takeControl(control: Tensor): Tensor;
  /** The parts of a partition that are updated one after the other. */
  tilesOf(partition: Partition): readonly HomeTile[];
  /**
   * Kernels enqueued from now on see the gradient and the state of one of its tiles, until
   * release().
   */
  acquire(partition: Partition, tile: HomeTile): TileTensors;
  /** All kernels of this pass over a tile have been enqueued. */
  release(tile: TileTensors): void;
  /** The new weights of a tile have been enqueued: they leave for where they are wanted. */
  deliver(partition: Partition, tile: HomeTile): void;
  /**
   * All tiles were delivered, nothing reads the gradient any more. Returns in whose order the
   * weights change.
   */
  finish(partition: Partition): Stream;
  /** Called before weights are read: later compute work sees the updated ones. */
  awaitWeights(partition: Partition): void;
  /**
   * The gradient, from receive() to the update, held once more; null where there is none. Complete
   * when this returns.
   */
  gradOf(partition: Partition): Tensor | null;
  /** What is lent is a copy, which takes memory while it is. */
  readonly lendsCopies: boolean;
  /** The master weights (name "master") or the state `name` of a piece. */
  lend(partition: Partition, piece: Piece, name: string): LentState;
  /**
   * Master weights were changed from outside (a loaded checkpoint): refreshes the partition's
   * weights.
   */
  refresh(partition: Partition): void;
  /** A flat tensor of zeros in the home's memory; the caller releases it. */
  allocate(numel: number, dtype: DType): Tensor;
  /**
   * `to` on the device receives `from` of the home as its kernels so far leave it; later compute
   * work sees it.
   */
  toDevice(to: Tensor, from: Tensor): void;
  /**
   * `to` of the home receives `from` of the device as compute work so far leaves it; the home's
   * later kernels see it.
   */
  toHome(to: Tensor, from: Tensor): void;
  /** Blocks until everything enqueued has run. */
  synchronize(): void;
  dispose(): void;
}
