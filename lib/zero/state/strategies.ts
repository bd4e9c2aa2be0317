// The contracts of optimizer state: when it is updated, where it is stored, how masters are kept,
// how weights leave.
import type { UpdateSettings, UpdateTensors } from '../../optim/optimizer.js';
import type { UpdateKernels } from '../../optim/update-kernels.js';
import type { DType } from '../../runtime/dtype.js';
import type { Event, Stream } from '../../runtime/stream.js';
import type { Tensor } from '../../tensor/index.js';
import type { Fragment, LayoutEntry, Range } from '../layout.js';
import type { Partition } from '../partition.js';
import type { Bytes, LentState } from './memory.js';
import type { RangeState, StateTile } from './tiles.js';

/** The properties of the next update that are known before its gradients. */
export interface UpdatePlan {
  readonly settings: UpdateSettings;
  /** The factor of the gradients: loss scale, and accumulation steps if not divided out. */
  readonly gradientScale: number;
}

/**
 * A partition, and the stream that orders the change of its weights. With `markChanged`, the change
 * precedes this event, because the stream also changes other partitions.
 */
export type UpdatedPartition = readonly [partition: Partition, stream: Stream, changed?: Event];

/** Sends updated weights to the other ranks. */
export interface Publisher {
  /** The weights change in the order of `stream`, before `markChanged`. Once per update. */
  publish(partition: Partition, stream: Stream, changed?: Event): void;
}

/** A compression error of a parameter on this rank, which the next exchange adds. */
export interface RankError {
  readonly entry: LayoutEntry;
  /**
   * "worker_error": the rank's own error, for the whole parameter. "server_error": the error of the
   * average, for the part that this rank owns.
   */
  readonly name: 'worker_error' | 'server_error';
  /** First element, from the parameter's start. */
  readonly from: number;
  /** Flat, f32. The receiver releases it. */
  readonly tensor: Tensor;
}

/**
 * Decides when the partitions of one ShardState are updated, and how ranks share the work. Methods
 * only enqueue work, unless their comment states that they block.
 */
export interface Schedule {
  /**
   * Updates every partition in forward order after the decision `control` on the device. Yields
   * each one after its new weights are enqueued.
   */
  update(control: Tensor, plan: UpdatePlan): Generator<UpdatedPartition, void>;
  /** Releases the schedule, before dispose() of the ShardState. */
  dispose(): void;
  /** Adds a partition that the ShardState has adopted. Called in forward order. */
  adopt?(partition: Partition): void;
  /** Called before the backward that completes the gradients of `plan`. */
  prepare?(plan: UpdatePlan): void;
  /** The ShardState has received the gradient of `partition`. */
  gradReady?(partition: Partition): void;
  /** Called after all gradients. Uploads of speculative weights start. */
  endBackward?(): void;
  /** Enqueues the part of an update that needs no step decision. Called in forward order. */
  begin?(partition: Partition): void;
  /** Called before weights are read. */
  awaitWeights?(partition: Partition): void;
  /** Replaces ShardState.gradOf. */
  gradOf?(partition: Partition): Tensor | null;
  /** Marks a partition's gradient or state as changed by other code. */
  markChanged?(): void;
  /** Enqueues postponed commits, so that the state is that of the last update. */
  commit?(): void;
  /** Whether weights of ranks may differ by local updates. Equal on every rank. */
  readonly isAdrift?: boolean;
  /** Makes the weights of all ranks equal, after `applied` updates. All ranks call it. */
  resync?(applied: number, publisher: Publisher): void;
  /** This rank's compression errors. */
  rankErrors?(): Iterable<RankError>;
  /** Bytes in addition to the ShardState's. */
  readonly bytes?: Pick<Bytes, 'device' | 'host'>;
}

/** Master weights and state of a tile in memory that kernels access. */
export type OpenTile = Pick<UpdateTensors, 'master' | 'state'>;

/** A partition in a ShardState, which owns the tensors. One tensor may have several roles. */
export interface ShardPart {
  readonly partition: Partition;
  /** [numel]: f32 masters, or bf16 upper halves. Null if the masters are on a disk. */
  readonly master: Tensor | null;
  /** [numel], receives the gradient. Null if updates read it where backward wrote it. */
  grad: Tensor | null;
  /** [numel] in the weights' dtype, receives the updated weights. Null if updates write none. */
  weight: Tensor | null;
  /** The state in memory; empty on a disk. */
  readonly ranges: readonly RangeState[];
  readonly tiles: readonly StateTile[];
  /** Recorded when all updated weights have reached the device or their storage. */
  readonly uploaded: Event;
  /** Whether the compute stream still has to wait for `uploaded`. */
  uploading: boolean;
}

/** Moves gradients to updates and weights from updates. Methods only enqueue work. */
export interface Traffic {
  /** The stream of updates. */
  readonly order: Stream;
  readonly bytes: number;
  /** Returns `control`, written on the compute stream, in memory that kernels read. */
  takeControl(control: Tensor): Tensor;
  /** Moves the gradient to the memory that updates read. It is complete after partition.ready. */
  receive?(part: ShardPart): void;
  /** Makes later work of `order` wait for the gradient of the tile. */
  awaitGradient(part: ShardPart, tile: StateTile): void;
  /** Marks the new weights of a tile as complete after the updates so far. */
  complete?(tile: StateTile): void;
  /** Makes later uploads wait for `event`. */
  holdUploads?(event: Event): void;
  /** Copies the weights of a complete tile to the partition's weights. */
  upload?(part: ShardPart, tile: StateTile): void;
  /** Called after the last upload. Returns the stream that orders the change of the weights. */
  finish(part: ShardPart): Stream;
  /** Copies whole `weights` to the storage. Returns the stream that orders the change. */
  store(part: ShardPart, weights: Tensor): Stream;
  /** Frees a gradient that updates read where backward wrote it. */
  dropGradient(part: ShardPart): void;
  /** Makes later compute work wait for the updated weights. */
  awaitWeights(part: ShardPart): void;
  /** Returns the gradient with a new reference, complete on return; null if there is none. */
  gradOf(part: ShardPart): Tensor | null;
  /** Copies `from`, complete in `order`, to `to` on the device. Later compute work sees it. */
  toDevice(to: Tensor, from: Tensor): void;
  /** Copies `from` on the device to `to`. Later work of `order` sees it. */
  fromDevice(to: Tensor, from: Tensor): void;
  /** Blocks until all enqueued work has run. */
  synchronize(): void;
  dispose(): void;
}

export interface PlacementCosts {
  /** Memory of masters and moments. */
  readonly state: keyof Bytes;
  /** Where updates read gradients and write weights; null: in the memory of backward. */
  readonly updates: 'device' | 'host' | null;
  /** Copies of tiles in the memory of updates; null: as many as configured. */
  readonly windows: number | null;
  /** Maximum elements per tile for any configuration. */
  readonly largestTile: number;
}

/** The memory that masters take, in bytes per parameter. */
export interface MasterCosts {
  /** Bytes in the memory of the state. */
  readonly stored: number;
  /** Additional bytes on the device. */
  readonly onDevice: number;
  /** Bytes on the device for the open tile. */
  readonly scratch: number;
  /** Whether the partition's weights are the upper halves of the masters. */
  readonly areWeights: boolean;
  /** Whether offloaded weights stay on the device. */
  readonly keepsWeights: boolean;
}

/** The optimizer state of partitions, between updates. */
export interface StateStorage {
  /** Orders changes of the state. */
  readonly order: Stream;
  /** Whether lend() returns a copy, which needs memory. */
  readonly lendsCopies: boolean;
  stateOf(partition: Partition): Pick<ShardPart, 'ranges' | 'tiles'>;
  tensorsOf(part: ShardPart): readonly Tensor[];
  /** Writes f32 master weights. `values`: [numel] f32 on the device, read on the compute stream. */
  writeMaster(part: ShardPart, fragment: Fragment, values: Tensor): void;
  /** Makes later openings wait for the compute work so far. */
  followCompute(): void;
  /** Lends f32 master weights (name "master") or the state `name` of a fragment. */
  lend(part: ShardPart, fragment: Fragment, name: string): LentState;
  /** Calls `body` with f32 masters and their range in the partition, complete in `order`. */
  forEachMaster(part: ShardPart, body: (master: Tensor, range: Range) => void): void;
  /** Releases the result of stateOf(). */
  release(part: ShardPart): void;
}

/** Memory of updates to which open tiles are copied. One tile at a time. */
export interface TileWindows {
  /** Makes room for a tile that is opened with the tensors `storedTile`. */
  makeRoom?(kept: OpenTile): void;
  /** Returns a tile for kernels enqueued until close(). `storedTile`: its tensors in memory. */
  open(tile: StateTile, kept: () => OpenTile): OpenTile;
  /** Ends open(). With `changed`, kernels wrote master weights and state. */
  close(opened: OpenTile, changed: boolean): void;
}

/** Where optimizer state is stored, and which processor updates it. */
export interface Placement {
  readonly storage: StateStorage;
  readonly traffic: Traffic;
  /** Enqueue in the order of updates. */
  readonly kernels: UpdateKernels;
  /** Whether the device runs the kernels; else CPU threads. */
  readonly updatesOnDevice: boolean;
  /** Absent if updates read state where it is stored, so that a pass moves no state. */
  readonly windows?: TileWindows;
  /** Bytes in addition to the tensors of parts. */
  readonly bytes: Bytes;
  /** Whether updates need gradients in other memory than that of backward. */
  readonly receivesGradients: boolean;
  /** Returns zeros in memory that kernels access. The caller releases them. */
  allocate(numel: number, dtype: DType): Tensor;
  /** Returns memory for f32 masters, with a reference; null on a disk. */
  masterMemory(partition: Partition): Tensor | null;
  synchronize(): void;
  dispose(): void;
}

export function canAccess({ updatesOnDevice }: Placement, { buffer }: Tensor): boolean {
  return buffer.pinned !== updatesOnDevice;
}

/** Returns one of `memories` for updated weights, with a new reference, or new memory. */
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

/** How the master weights are kept: by default as f32 in the storage, separate from the weights. */
export interface Masters {
  /** Whether the partition's weights are the upper halves of the masters. */
  readonly areWeights: boolean;
  readonly bytes: Bytes;
  /** Writes and lends fragments of masters in another form, as copies. */
  readonly fragments?: {
    write(part: ShardPart, fragment: Fragment, values: Tensor): void;
    lend(part: ShardPart, fragment: Fragment): LentState;
  };
  /** Returns the memory of ShardPart.master, with a reference. */
  memory(partition: Partition): Tensor | null;
  adopt?(part: ShardPart): void;
  /** Returns the tensors of a tile as they are stored, with a reference to `master`. */
  storedTile(part: ShardPart, tile: StateTile): OpenTile;
  /** Returns the tensors that kernels update, from a tile that the placement has opened. */
  openTile?(part: ShardPart, tile: StateTile, kept: OpenTile): OpenTile;
  /** Returns the placement's tensors of a tile, from the tensors that kernels have updated. */
  closeTile?(part: ShardPart, opened: OpenTile, changed: boolean): OpenTile;
  /** Sends updated weights on their way. */
  readonly route: Pick<Traffic, 'upload' | 'finish'>;
  /** Updates the weights after a change of masters. Replaces WeightTarget.refresh. */
  refresh?(part: ShardPart): void;
  dispose?(): void;
}

export interface WeightTarget {
  /** Returns the memory of ShardPart.weight; `memories`: of the masters and the gradient. */
  memory(partition: Partition, memories: readonly (Tensor | null)[]): Tensor | null;
  /** Called after the new weights of a tile are enqueued. */
  deliver(part: ShardPart, tile: StateTile): void;
  /** Called after the last tile. Returns the stream that orders the change of the weights. */
  finish(part: ShardPart): Stream;
  /**
   * Sends speculative weights on their way after their updates. `backward`: its end. `readLate`:
   * backward may read the previous weights until then.
   */
  uploadAll(part: ShardPart, backward: Event, readLate: boolean): void;
  /** Rounds changed f32 masters to the weights. Blocks until complete. */
  refresh(part: ShardPart): void;
}
