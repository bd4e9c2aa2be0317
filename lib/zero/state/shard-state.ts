// ShardState: master weights and optimizer state of partitions, and their updates.
import { dtypeSize } from '../../runtime/dtype.js';
import * as kernels from '../../runtime/kernels.generated.js';
import { Event, type Stream } from '../../runtime/stream.js';
import { sliceFlat } from '../../tensor/flat.js';
import type { Tensor } from '../../tensor/index.js';
import type { Fragment } from '../layout.js';
import type { Partition } from '../shard.js';
import type { Bytes, LentState } from './lent-state.js';
import { uploadRounded } from './pinned.js';
import type {
  MasterCosts,
  Masters,
  OpenTile,
  Placement,
  ShardPart,
  TileTensors,
  WeightTarget,
} from './strategies.js';
import type { StateTile } from './tiles.js';

/** The choices that make up a ShardState, which owns them. */
interface ShardStrategies<P extends Placement = Placement> {
  placement: P;
  masters: Masters;
  weights: WeightTarget;
}

/**
 * Stores master weights and optimizer state of partitions, and runs their updates in the order of
 * one stream. A schedule decides when partitions are updated. All strategies give the same bits.
 * Methods do not block the host unless their comment states it; events order the work.
 */
export class ShardState<P extends Placement = Placement> {
  readonly placement: P;
  private readonly masters: Masters;
  private readonly weights: WeightTarget;
  private readonly parts = new Map<Partition, ShardPart>();

  constructor({ placement, masters, weights }: ShardStrategies<P>) {
    this.placement = placement;
    this.masters = masters;
    this.weights = weights;
  }

  /** The names of its strategies, such as "HostState, F32Masters, DeviceWeights". */
  get names(): string {
    const all = [this.placement, this.masters, this.weights];
    return all.map((one) => one.constructor.name).join(', ');
  }

  /** Adds a partition: allocates its master weights and state. */
  adopt(partition: Partition): void {
    const { placement, masters } = this;
    const { unit, numel, device } = partition;
    const master = masters.memory(partition);
    const lands = placement.receivesGradients && !masters.leavesGradients;
    const grad = lands ? placement.allocate(numel, unit.gradient.dtype) : null;
    const isWeight = masters.areWeights && master;
    const part: ShardPart = {
      ...{ partition, master, grad, uploading: false },
      weight: isWeight ? isWeight.retain() : this.weights.memory(partition, [master, grad]),
      ...placement.storage.stateOf(partition),
      uploaded: new Event(device),
    };
    this.parts.set(partition, part);
    masters.adopt(part);
  }

  /**
   * Writes the master weights of a fragment. `values`: [numel] f32 on the device, read on the
   * compute stream.
   */
  writeMaster(partition: Partition, fragment: Fragment, values: Tensor): void {
    this.masters.write(this.partOf(partition), fragment, values);
  }

  /**
   * Moves the gradient of `partition` to the memory that updates read. It is complete after
   * partition.ready.
   */
  receive(partition: Partition): void {
    this.placement.traffic.receive(this.partOf(partition));
  }

  /** The tiles of a partition, updated one after another. */
  tilesOf(partition: Partition): readonly StateTile[] {
    return this.partOf(partition).tiles;
  }

  /** Returns the gradient and state of a tile for kernels enqueued until release(). */
  acquire(partition: Partition, tile: StateTile): TileTensors {
    const part = this.partOf(partition);
    const { master: all, weight } = part;
    const { range, sums, starts } = tile;
    const { group, places } = range;
    this.placement.traffic.awaitGradient(part, tile);
    return {
      ...{ group, places, sums, starts },
      ...this.open(partition, tile),
      grad: sliceFlat(part.grad ?? (partition.grad as Tensor), range),
      weight: weight && weight !== all ? sliceFlat(weight, range) : null,
    };
  }

  /** Called after all kernels of this pass over a tile are enqueued. */
  release(partition: Partition, tensors: TileTensors): void {
    for (const slice of [tensors.grad, tensors.weight]) slice?.release();
    this.close(partition, tensors, true);
  }

  /** Returns the state of a tile for kernels enqueued until close(). One tile at a time. */
  open(partition: Partition, tile: StateTile): OpenTile {
    const { masters, placement } = this;
    const part = this.partOf(partition);
    const kept = placement.open(tile, () => masters.kept(part, tile));
    return masters.opened(part, tile, kept);
  }

  /** `changed`: kernels wrote master weights and state. */
  close(partition: Partition, opened: OpenTile, changed: boolean): void {
    const kept = this.masters.closing(this.partOf(partition), opened, changed);
    this.placement.close(kept, changed);
  }

  /** Called after the new weights of a tile are enqueued. Sends them to their destination. */
  deliver(partition: Partition, tile: StateTile): void {
    this.weights.deliver(this.partOf(partition), tile);
  }

  /**
   * Called after all tiles are delivered and nothing reads the gradient. Returns the stream that
   * orders the change of the weights.
   */
  finish(partition: Partition): Stream {
    const part = this.partOf(partition);
    if (!part.grad) this.placement.traffic.dropGradient(part);
    return this.weights.finish(part);
  }

  /** Sends speculative weights on their way: see WeightTarget.uploadAll. */
  uploadAll(partition: Partition, backward: Event, readLate: boolean): void {
    this.weights.uploadAll(this.partOf(partition), backward, readLate);
  }

  /** Called before weights are read. Later compute work sees the updated weights. */
  awaitWeights(partition: Partition): void {
    this.placement.traffic.awaitWeights(this.partOf(partition));
  }

  /**
   * From now on, `memory` receives the partition's gradients and holds its weights. It is [numel]
   * in the weights' dtype, from allocate(). Returns the previous gradient memory; the caller owns
   * it.
   */
  replaceGrad(partition: Partition, memory: Tensor): Tensor {
    const part = this.partOf(partition);
    const grad = part.grad as Tensor;
    part.weight?.release();
    part.weight = memory.retain();
    part.grad = memory;
    return grad;
  }

  /**
   * Returns the gradient between receive() and the update, with a new reference; else null.
   * Complete on return.
   */
  gradOf(partition: Partition): Tensor | null {
    return this.placement.traffic.gradOf(this.partOf(partition));
  }

  /** Whether lend() returns a copy, which needs memory. */
  get lendsCopies(): boolean {
    return this.masters.lendsCopies;
  }

  /** Lends the master weights (name "master") or the state `name` of a fragment. */
  lend(partition: Partition, fragment: Fragment, name: string): LentState {
    const part = this.partOf(partition);
    if (name === 'master') return this.masters.lend(part, fragment);
    return this.placement.storage.lend(part, fragment, name);
  }

  /**
   * Refreshes the partition's weights after an external change of master weights, such as a load.
   */
  refresh(partition: Partition): void {
    const part = this.partOf(partition);
    if (!this.masters.refresh(part)) this.weights.refresh(part);
  }

  /** Bytes in use by location, without the partitions' weights. */
  get bytes(): Bytes {
    const sum = { device: 0, host: 0, disk: 0 };
    for (const { device, host, disk } of [this.placement.bytes, this.masters.bytes]) {
      sum.device += device;
      sum.host += host;
      sum.disk += disk;
    }
    for (const part of this.parts.values()) {
      const { master, grad, weight, partition } = part;
      const all = new Set([master, grad, weight, ...this.placement.storage.tensorsOf(part)]);
      all.delete(partition.storage.memory);
      for (const tensor of all) {
        if (tensor) sum[tensor.buffer.pinned ? 'host' : 'device'] += tensor.bytes;
      }
    }
    return sum;
  }

  /** Blocks until all enqueued work has run. */
  synchronize(): void {
    if (this.parts.size === 0) return;
    this.placement.synchronize();
    for (const { uploaded } of this.parts.values()) uploaded.synchronize();
  }

  dispose(): void {
    this.placement.synchronize();
    for (const part of this.parts.values()) {
      part.uploaded.synchronize();
      for (const tensor of [part.master, part.grad, part.weight]) tensor?.release();
      this.placement.storage.release(part);
      part.uploaded.dispose();
    }
    this.parts.clear();
    this.masters.dispose();
    this.placement.dispose();
  }

  /** The memory of a partition. */
  partOf(partition: Partition): ShardPart {
    return this.parts.get(partition) as ShardPart;
  }
}

/** Makes room for the largest tile of `part`. */
export function makeRoom(part: ShardPart, masters: Masters, placement: Placement): void {
  for (const tile of part.tiles) {
    const kept = masters.kept(part, tile);
    placement.makeRoom(kept);
    kept.master.release();
  }
}

export class F32Masters implements Masters {
  static readonly costs: MasterCosts = {
    stored: dtypeSize('f32'),
    onDevice: 0,
    scratch: 0,
    areWeights: false,
    keepsWeights: false,
  };
  readonly areWeights = F32Masters.costs.areWeights;
  readonly leavesGradients = false;
  readonly bytes = { device: 0, host: 0, disk: 0 };

  constructor(private readonly placement: Placement) {}

  get lendsCopies(): boolean {
    return this.placement.storage.lendsCopies;
  }

  memory(partition: Partition): Tensor | null {
    return this.placement.masterMemory(partition);
  }

  adopt(part: ShardPart): void {
    if (part.master) makeRoom(part, this, this.placement);
  }

  kept({ master }: ShardPart, { range, state }: StateTile): OpenTile {
    return { master: sliceFlat(master as Tensor, range), state };
  }

  opened(_part: ShardPart, _tile: StateTile, kept: OpenTile): OpenTile {
    return kept;
  }

  closing(_part: ShardPart, opened: OpenTile): OpenTile {
    return opened;
  }

  upload(part: ShardPart, tile: StateTile): void {
    this.placement.traffic.upload(part, tile);
  }

  finish(part: ShardPart): Stream {
    return this.placement.traffic.finish(part);
  }

  write(part: ShardPart, fragment: Fragment, values: Tensor): void {
    this.placement.storage.writeMaster(part, fragment, values);
  }

  lend(part: ShardPart, fragment: Fragment): LentState {
    return this.placement.storage.lend(part, fragment, 'master');
  }

  refresh(): boolean {
    return false;
  }

  dispose(): void {}
}

export class DeviceWeights implements WeightTarget {
  constructor(
    private readonly placement: Placement,
    private readonly masters: Masters,
  ) {}

  memory(partition: Partition, memories: readonly (Tensor | null)[]): Tensor | null {
    return this.placement.weightMemory(partition, memories);
  }

  deliver(part: ShardPart, tile: StateTile): void {
    this.placement.traffic.complete(tile);
    this.masters.upload(part, tile);
  }

  finish(part: ShardPart): Stream {
    return this.masters.finish(part);
  }

  uploadAll(part: ShardPart, backward: Event, readLate: boolean): void {
    if (readLate) this.placement.traffic.holdUploads(backward);
    for (const tile of part.tiles) this.masters.upload(part, tile);
    this.finish(part);
  }

  refresh(part: ShardPart): void {
    const { weights } = part.partition;
    this.placement.storage.eachMaster(part, (master, range) => {
      if (master === weights) return;
      const rounded = sliceFlat(weights, range);
      if (master.buffer.pinned) uploadRounded(master, rounded);
      else kernels.copy({ in: master, out: rounded });
      rounded.release();
    });
  }
}
