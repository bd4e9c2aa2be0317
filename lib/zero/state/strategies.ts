// The contracts of optimizer state. A Schedule decides when state is updated, and a Placement where
// it is stored. Masters decides the form of master weights. A WeightTarget receives updated
// weights.
import type { UpdateSettings, UpdateTensors } from '../../optim/optimizer.js';
import type { UpdateKernels } from '../../optim/update-kernels.js';
import type { DType } from '../../runtime/dtype.js';
import type { Event, Stream } from '../../runtime/stream.js';
import type { Tensor } from '../../tensor/index.js';
import type { Fragment, LayoutEntry, Range } from '../layout.js';
import type { Partition } from '../partition.js';
import type { Bytes, LentState } from './memory.js';
import type { RangeState, StateTile } from './tiles.js';

/** Properties of the next update that are known before its gradients. */
export interface UpdatePlan {
  readonly settings: UpdateSettings;
  /**
   * Gradients are this factor too large: the loss scale, and the accumulation steps if they are not
   * divided out.
   */
  readonly gradientScale: number;
}

/**
 * A partition, and the stream that orders the change of its weights. If `changed` is given, this
 * event marks the change, because the stream also changes other partitions.
 */
export type UpdatedPartition = readonly [partition: Partition, stream: Stream, changed?: Event];

/** Sends updated weights to the other ranks. */
export interface Publisher {
  /**
   * Called once per partition and update. The weights change in the order of `stream`, before the
   * event `changed` if given.
   */
  publish(partition: Partition, stream: Stream, changed?: Event): void;
}

/** An error of the compressed exchange for a parameter on this rank. The next exchange adds it. */
export interface RankError {
  readonly entry: LayoutEntry;
  /**
   * "worker_error": the error of the rank's own vector, for the whole parameter. "server_error":
   * the error of the average, for the elements that this rank owns.
   */
  readonly name: 'worker_error' | 'server_error';
  /** Index of the first element in the parameter. */
  readonly from: number;
  /** Flat, f32. The receiver releases it. */
  readonly tensor: Tensor;
}

/**
 * Decides when the partitions of one ShardState are updated, and how ranks divide the work. A
 * method blocks the host only if its comment states this.
 */
export interface Schedule {
  /**
   * Updates every partition in forward order. `control` holds the step decision on the device.
   * Yields each partition after its new weights are enqueued. May block until the decision is
   * known.
   */
  update(control: Tensor, plan: UpdatePlan): Generator<UpdatedPartition, void>;
  /** Releases the schedule, before dispose() of the ShardState. */
  dispose(): void;
  /** Adds a partition that the ShardState has adopted. Called in forward order. */
  adopt?(partition: Partition): void;
  /** Called before the backward that completes the gradients of `plan`. */
  prepare?(plan: UpdatePlan): void;
  /** Called after the ShardState has received the gradient of `partition`. */
  gradReady?(partition: Partition): void;
  /** Called after the last gradient of a backward. Starts the uploads of speculative weights. */
  endBackward?(): void;
  /** Enqueues the work of an update that needs no step decision. Called in forward order. */
  begin?(partition: Partition): void;
  /** Called before weights are read. */
  awaitWeights?(partition: Partition): void;
  /** If defined, replaces ShardState.gradOf(). */
  gradOf?(partition: Partition): Tensor | null;
  /** Called after other code changed a partition's gradient or state. */
  markChanged?(): void;
  /** Enqueues postponed commits. The state is then that of the last update. */
  commit?(): void;
  /**
   * Whether ranks may hold different weights, because they updated without an exchange. The value
   * is the same on every rank.
   */
  readonly needsResync?: boolean;
  /** Makes the weights of all ranks equal, after `applied` updates. All ranks must call it. */
  resync?(applied: number, publisher: Publisher): void;
  /** Returns this rank's errors of compressed exchanges. */
  rankErrors?(): Iterable<RankError>;
  /** Bytes in addition to the bytes of the ShardState. */
  readonly bytes?: Pick<Bytes, 'device' | 'host'>;
}

/** Master weights and optimizer state of a tile, in memory that kernels access. */
export type OpenTile = Pick<UpdateTensors, 'master' | 'state'>;

/** A partition in a ShardState, which owns these tensors. Two fields may hold the same tensor. */
export interface ShardPart {
  readonly partition: Partition;
  /** f32 masters, or bf16 upper halves, [numel]. Null if masters are on a disk. */
  readonly master: Tensor | null;
  /**
   * Receives the gradient, [numel]. Null if updates read the gradient in the memory of backward.
   */
  grad: Tensor | null;
  /**
   * [numel] in the dtype of the weights: receives the updated weights. Null if updates write only
   * masters.
   */
  weight: Tensor | null;
  /** The state by range of parameters. Empty if the state is on a disk. */
  readonly ranges: readonly RangeState[];
  readonly tiles: readonly StateTile[];
  /** Recorded when all updated weights have reached the device or their storage. */
  readonly uploaded: Event;
  /** Whether the compute stream must still wait for `uploaded`. */
  uploading: boolean;
}

/**
 * Moves gradients to updates, and weights from updates to their destination. Methods only enqueue
 * work.
 */
export interface Traffic {
  /** The stream of updates. */
  readonly order: Stream;
  readonly bytes: number;
  /**
   * Returns the step decision `control` in memory that kernels of updates read. The compute stream
   * wrote it.
   */
  takeControl(control: Tensor): Tensor;
  /**
   * Moves the gradient to the memory that updates read. The gradient is complete after
   * partition.ready.
   */
  receive?(part: ShardPart): void;
  /** Makes later work of `order` wait for the gradient of the tile. */
  awaitGradient(part: ShardPart, tile: StateTile): void;
  /** Marks the new weights of a tile as complete after all updates enqueued so far. */
  complete?(tile: StateTile): void;
  /** Makes later uploads wait for `event`. */
  holdUploads?(event: Event): void;
  /** Copies the new weights of a complete tile to the partition's weights. */
  upload?(part: ShardPart, tile: StateTile): void;
  /** Called after the last upload. Returns the stream that orders the change of the weights. */
  finish(part: ShardPart): Stream;
  /**
   * Copies the weights of the whole partition to their storage. Returns the stream that orders the
   * change.
   */
  store(part: ShardPart, weights: Tensor): Stream;
  /** Frees a gradient in the memory of backward after updates have read it. */
  dropGradient(part: ShardPart): void;
  /** Makes later compute work wait for the updated weights. */
  awaitWeights(part: ShardPart): void;
  /** Returns the gradient, complete on return, or null. The caller releases it. */
  gradOf(part: ShardPart): Tensor | null;
  /** Copies `from`, complete in `order`, to `to` on the device. Later compute work waits for it. */
  toDevice(to: Tensor, from: Tensor): void;
  /** Copies `from` on the device to `to`. Later work of `order` waits for it. */
  fromDevice(to: Tensor, from: Tensor): void;
  /** Blocks until all enqueued work has run. */
  synchronize(): void;
  dispose(): void;
}

export interface PlacementCosts {
  /** The location of masters and moments. */
  readonly state: keyof Bytes;
  /**
   * The memory with the gradients that updates read and the weights that they write. Null: the
   * memory of backward.
   */
  readonly updates: 'device' | 'host' | null;
  /** Number of tile buffers in the memory of updates. Null: the configuration sets it. */
  readonly windows: number | null;
  /** Maximum elements per tile in any configuration. */
  readonly largestTile: number;
}

/** Bytes per parameter that masters need. */
export interface MasterCosts {
  /** Bytes in the memory of the optimizer state. */
  readonly stored: number;
  /** Additional bytes on the device. */
  readonly onDevice: number;
  /** Bytes on the device per parameter of the open tile. */
  readonly scratch: number;
  /** Whether the partition's weights are the upper halves of the masters. */
  readonly areWeights: boolean;
  /** Whether offloaded weights stay on the device. */
  readonly keepsWeights: boolean;
}

/** Stores the optimizer state of partitions between updates. */
export interface StateStorage {
  /** The stream that orders changes of the state. */
  readonly order: Stream;
  /** Whether lend() returns a copy. Copies need memory. */
  readonly lendsCopies: boolean;
  stateOf(partition: Partition): Pick<ShardPart, 'ranges' | 'tiles'>;
  tensorsOf(part: ShardPart): readonly Tensor[];
  /**
   * Writes the f32 masters of a fragment. `values`: [numel] f32 on the device, read on the compute
   * stream.
   */
  writeMaster(part: ShardPart, fragment: Fragment, values: Tensor): void;
  /** Makes later opened tiles wait for the compute work so far. */
  followCompute(): void;
  /** Lends f32 masters (name "master") or the state `name` of a fragment. */
  lend(part: ShardPart, fragment: Fragment, name: string): LentState;
  /** Calls `body` with f32 masters, complete in `order`, and their range in the partition. */
  forEachMaster(part: ShardPart, body: (master: Tensor, range: Range) => void): void;
  /** Releases the tensors of stateOf(). */
  release(part: ShardPart): void;
}

/** Buffers into which open tiles are copied for their update. Only one tile is open at a time. */
export interface TileWindows {
  /** Enlarges the buffers so that a tile with the tensors `storedTile` fits. */
  reserve?(storedTile: OpenTile): void;
  /**
   * Opens a tile. Kernels may use the returned tensors until close(). `storedTile` returns the
   * tensors in the storage.
   */
  open(tile: StateTile, storedTile: () => OpenTile): OpenTile;
  /** Ends open(). `changed`: whether kernels wrote master weights or state. */
  close(opened: OpenTile, changed: boolean): void;
}

/** Where optimizer state is stored, and which processor updates it. */
export interface Placement {
  readonly storage: StateStorage;
  readonly traffic: Traffic;
  /** Functions that enqueue kernels on the stream of updates. */
  readonly kernels: UpdateKernels;
  /** Whether the device runs the kernels. If not, CPU threads run them. */
  readonly updatesOnDevice: boolean;
  /** Absent if updates work in the memory of the state, so that an update copies no state. */
  readonly windows?: TileWindows;
  /** Bytes in addition to the tensors of its ShardParts. */
  readonly bytes: Bytes;
  /** Whether updates read gradients in another memory than that of backward. */
  readonly receivesGradients: boolean;
  /** Returns a zero-filled tensor in memory that kernels access. The caller releases it. */
  allocate(numel: number, dtype: DType): Tensor;
  /** Returns memory for f32 masters. The caller releases it. Null if masters are on a disk. */
  masterMemory(partition: Partition): Tensor | null;
  synchronize(): void;
  dispose(): void;
}

export function canAccess({ updatesOnDevice }: Placement, { buffer }: Tensor): boolean {
  return buffer.pinned !== updatesOnDevice;
}

/**
 * Returns memory for updated weights: one of `memories` if it fits, else new memory. The caller
 * releases it.
 */
export function memoryForWeights(
  placement: Placement,
  { numel, unit: { dtype } }: Partition,
  memories: readonly (Tensor | null)[],
): Tensor {
  const reusable = memories.find(
    (memory) => memory?.dtype === dtype && canAccess(placement, memory),
  );
  return reusable?.retain() ?? placement.allocate(numel, dtype);
}

/**
 * The form of the master weights. By default, they are f32 in the storage, separate from the
 * weights.
 */
export interface Masters {
  /** Whether the weights are the upper halves of the masters. */
  readonly areWeights: boolean;
  readonly bytes: Bytes;
  /** Writes and lends fragments as f32 copies, if masters have another form. */
  readonly fragments?: {
    write(part: ShardPart, fragment: Fragment, values: Tensor): void;
    lend(part: ShardPart, fragment: Fragment): LentState;
  };
  /** Returns the tensor for ShardPart.master. The ShardState releases it. */
  memory(partition: Partition): Tensor | null;
  adopt?(part: ShardPart): void;
  /** Returns the tensors of a tile in their stored form. The caller releases `master`. */
  storedTile(part: ShardPart, tile: StateTile): OpenTile;
  /** Converts an opened tile to the tensors that kernels update. */
  openTile?(part: ShardPart, tile: StateTile, stored: OpenTile): OpenTile;
  /** Converts the tensors that kernels have updated back to the stored form of the tile. */
  closeTile?(part: ShardPart, opened: OpenTile, changed: boolean): OpenTile;
  /** Uploads the updated weights. */
  readonly route: Pick<Traffic, 'upload' | 'finish'>;
  /**
   * Recomputes the weights after a change of masters. If defined, it replaces WeightTarget.refresh.
   */
  refresh?(part: ShardPart): void;
  dispose?(): void;
}

export interface WeightTarget {
  /**
   * Returns the tensor for ShardPart.weight. `memories`: the tensors of the masters and the
   * gradient.
   */
  memory(partition: Partition, memories: readonly (Tensor | null)[]): Tensor | null;
  /** Called after the new weights of a tile are enqueued. Uploads them. */
  deliver(part: ShardPart, tile: StateTile): void;
  /** Called after the last tile. Returns the stream that orders the change of the weights. */
  finish(part: ShardPart): Stream;
  /**
   * Uploads speculative weights after their updates. `backward` is the end of backward. `readLate`:
   * backward may read the previous weights until then.
   */
  uploadAll(part: ShardPart, backward: Event, readLate: boolean): void;
  /** Rounds changed f32 masters to the weights. Blocks until complete. */
  refresh(part: ShardPart): void;
}
