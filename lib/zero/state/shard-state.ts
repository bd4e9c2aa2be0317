// ShardState runs the updates of some partitions. It combines three strategies: placement, masters
// and weights (strategies.ts). This file also has the simplest masters and weights: f32 masters,
// and weights on the device.

import type { UpdateTensors } from '../../optim/optimizer.js';
import { halves } from '../../optim/split-master.js';
import { dtypeSize } from '../../runtime/dtype.js';
import * as kernels from '../../runtime/kernels.generated.js';
import { required } from '../../runtime/required.js';
import { Event, type Stream } from '../../runtime/stream.js';
import { sliceFlat } from '../../tensor/flat.js';
import type { Tensor } from '../../tensor/index.js';
import type { Fragment } from '../layout.js';
import type { Partition } from '../partition.js';
import { type Bytes, bytesOf, type LentState, totalBytes, uploadRounded } from './memory.js';
import {
  type MasterCosts,
  type Masters,
  memoryForWeights,
  type OpenTile,
  type Placement,
  type ShardPart,
  type Traffic,
  type WeightTarget,
} from './strategies.js';
import type { StateTile } from './tiles.js';

/**
 * Stores masters and optimizer state of partitions, and runs their updates in the order of one
 * stream. Owns its strategies. A method blocks the host only if its comment states this.
 */
export class ShardState<P extends Placement = Placement> {
  private readonly parts = new Map<Partition, ShardPart>();

  constructor(
    readonly placement: P,
    private readonly masters: Masters,
    private readonly weights: WeightTarget,
  ) {}

  /** The names of its strategies, such as "HostState, F32Masters, DeviceWeights". */
  get names(): string {
    const all = [this.placement, this.masters, this.weights];
    return all.map((item) => item.constructor.name).join(', ');
  }

  /** Adds a partition, and allocates its master weights and state. */
  adopt(partition: Partition): void {
    const { placement, masters } = this;
    const { unit, numel, device } = partition;
    const master = masters.memory(partition);
    const isInPlace = masters.areWeights && placement.updatesOnDevice;
    const needsGradMemory = placement.receivesGradients && !isInPlace;
    const grad = needsGradMemory ? placement.allocate(numel, unit.gradient.dtype) : null;
    const isWeight = masters.areWeights && master;
    const part: ShardPart = {
      partition,
      master,
      grad,
      uploading: false,
      weight: isWeight ? isWeight.retain() : this.weights.memory(partition, [master, grad]),
      ...placement.storage.stateOf(partition),
      uploaded: new Event(device),
    };
    this.parts.set(partition, part);
    if (placement.windows?.reserve) {
      for (const tile of part.tiles) {
        const storedTile = masters.storedTile(part, tile);
        placement.windows.reserve(storedTile);
        storedTile.master.release();
      }
    }
    masters.adopt?.(part);
  }

  /**
   * Writes the master weights of a fragment. `values`: [numel] f32 on the device, read on the
   * compute stream.
   */
  writeMaster(partition: Partition, fragment: Fragment, values: Tensor): void {
    const part = this.partOf(partition);
    const { fragments } = this.masters;
    if (fragments) fragments.write(part, fragment, values);
    else this.placement.storage.writeMaster(part, fragment, values);
  }

  /**
   * Moves the gradient to the memory that updates read. The gradient is complete after
   * partition.ready.
   */
  receive(partition: Partition): void {
    this.placement.traffic.receive?.(this.partOf(partition));
  }

  /** For each tile: calls `body`, which enqueues the kernels of the update, then `onTileDone`. */
  update(
    partition: Partition,
    control: Tensor,
    body: (tensors: UpdateTensors, tile: StateTile) => void,
    onTileDone?: (tile: StateTile) => void,
  ): void {
    const part = this.partOf(partition);
    for (const tile of part.tiles) {
      const { range, sums, starts } = tile;
      const { group, places } = range;
      this.placement.traffic.awaitGradient(part, tile);
      const opened = this.open(partition, tile);
      const grad = sliceFlat(part.grad ?? required(partition.grad), range);
      const isOwn = part.weight && part.weight !== part.master;
      const weight = isOwn ? sliceFlat(required(part.weight), range) : null;
      body({ group, places, sums, starts, control, ...opened, grad, weight }, tile);
      for (const slice of [grad, weight]) slice?.release();
      this.close(partition, opened, true);
      onTileDone?.(tile);
    }
  }

  /**
   * Returns the tensors of a tile. Kernels may use them until close(). Only one tile is open at a
   * time.
   */
  open(partition: Partition, tile: StateTile): OpenTile {
    const { masters, placement } = this;
    const part = this.partOf(partition);
    const openStored = (): OpenTile => masters.storedTile(part, tile);
    const opened = placement.windows?.open(tile, openStored) ?? openStored();
    return masters.openTile?.(part, tile, opened) ?? opened;
  }

  /** Ends open(). `changed`: whether kernels wrote master weights or state. */
  close(partition: Partition, opened: OpenTile, changed: boolean): void {
    const { masters, placement } = this;
    const stored = masters.closeTile?.(this.partOf(partition), opened, changed) ?? opened;
    if (placement.windows) placement.windows.close(stored, changed);
    else stored.master.release();
  }

  /** Sends the updated weights of `tile`, or of all tiles, to their destination. */
  deliver(partition: Partition, tile?: StateTile): void {
    const part = this.partOf(partition);
    for (const item of tile ? [tile] : part.tiles) this.weights.deliver(part, item);
  }

  /**
   * Ends an update, after its last read of the gradient. Returns the stream that orders the new
   * weights.
   */
  finish(partition: Partition): Stream {
    const part = this.partOf(partition);
    if (!part.grad) this.placement.traffic.dropGradient(part);
    return this.weights.finish(part);
  }

  /** Uploads speculative weights: see WeightTarget.uploadAll. */
  uploadAll(partition: Partition, backward: Event, readLate: boolean): void {
    this.weights.uploadAll(this.partOf(partition), backward, readLate);
  }

  /** Makes later compute work wait for the updated weights. Called before weights are read. */
  awaitWeights(partition: Partition): void {
    this.placement.traffic.awaitWeights(this.partOf(partition));
  }

  /**
   * Replaces the memory of the partition's gradients and updated weights by `memory` (from
   * allocate()), and takes ownership of it. Returns the previous memory; the caller owns it.
   */
  replaceGrad(partition: Partition, memory: Tensor): Tensor {
    const part = this.partOf(partition);
    const grad = required(part.grad);
    part.weight?.release();
    part.weight = memory.retain();
    part.grad = memory;
    return grad;
  }

  /**
   * Returns the gradient if it is not yet used by an update, else null. Complete on return. The
   * caller releases it.
   */
  gradOf(partition: Partition): Tensor | null {
    return this.placement.traffic.gradOf(this.partOf(partition));
  }

  /** Whether lend() returns a copy. Copies need memory. */
  get lendsCopies(): boolean {
    return this.masters.fragments !== undefined || this.placement.storage.lendsCopies;
  }

  /** Lends the master weights (name "master") or the state `name` of a fragment. */
  lend(partition: Partition, fragment: Fragment, name: string): LentState {
    const part = this.partOf(partition);
    const { fragments } = this.masters;
    if (name === 'master' && fragments) return fragments.lend(part, fragment);
    return this.placement.storage.lend(part, fragment, name);
  }

  /** Recomputes the weights from the master weights, after a load or another external change. */
  refresh(partition: Partition): void {
    const part = this.partOf(partition);
    if (this.masters.refresh) this.masters.refresh(part);
    else this.weights.refresh(part);
  }

  /** Bytes by location. The weights of partitions are not included. */
  get bytes(): Bytes {
    const { placement, masters } = this;
    const parts = Array.from(this.parts.values(), (part) => {
      const { master, grad, weight, partition } = part;
      const all = new Set([master, grad, weight, ...placement.storage.tensorsOf(part)]);
      all.delete(partition.storage.memory);
      return bytesOf(all);
    });
    return totalBytes([placement.bytes, masters.bytes, ...parts]);
  }

  /**
   * Tensors on the device: masters, and the rest of the state. Masters that are also the weights
   * are not included. The halves of split masters count as masters.
   */
  get deviceMemory(): { masters: Tensor[]; states: Tensor[] } {
    const [masters, states]: [Tensor[], Tensor[]] = [[], []];
    const lower: readonly string[] = Object.values(halves);
    for (const { master, ranges, partition } of this.parts.values()) {
      if (master && master.buffer !== partition.storage.memory?.buffer) masters.push(master);
      for (const { state } of ranges) {
        for (const [name, tensor] of Object.entries(state)) {
          (lower.includes(name) ? masters : states).push(tensor);
        }
      }
    }
    const isOnDevice = ({ buffer }: Tensor): boolean => !buffer.pinned;
    return { masters: masters.filter(isOnDevice), states: states.filter(isOnDevice) };
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
    this.masters.dispose?.();
    this.placement.dispose();
  }

  partOf(partition: Partition): ShardPart {
    return required(this.parts.get(partition));
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
  readonly bytes = { device: 0, host: 0, disk: 0 };
  readonly route: Traffic;

  constructor(private readonly placement: Placement) {
    this.route = placement.traffic;
  }

  memory(partition: Partition): Tensor | null {
    return this.placement.masterMemory(partition);
  }

  storedTile({ master }: ShardPart, { range, state }: StateTile): OpenTile {
    return { master: sliceFlat(required(master), range), state };
  }
}

export class DeviceWeights implements WeightTarget {
  constructor(
    private readonly placement: Placement,
    private readonly masters: Masters,
  ) {}

  /**
   * Returns the memory that updates write new weights to. If kernels can write the partition's
   * weights, these; null if they are also the masters.
   */
  memory(partition: Partition, memories: readonly (Tensor | null)[]): Tensor | null {
    if (this.placement.receivesGradients)
      return memoryForWeights(this.placement, partition, memories);
    const { weights } = partition;
    return memories.includes(weights) ? null : weights.retain();
  }

  deliver(part: ShardPart, tile: StateTile): void {
    this.placement.traffic.complete?.(tile);
    this.masters.route.upload?.(part, tile);
  }

  finish(part: ShardPart): Stream {
    return this.masters.route.finish(part);
  }

  uploadAll(part: ShardPart, backward: Event, readLate: boolean): void {
    if (readLate) this.placement.traffic.holdUploads?.(backward);
    for (const tile of part.tiles) this.masters.route.upload?.(part, tile);
    this.finish(part);
  }

  refresh(part: ShardPart): void {
    const { weights } = part.partition;
    this.placement.storage.forEachMaster(part, (master, range) => {
      if (master === weights) return;
      const rounded = sliceFlat(weights, range);
      if (master.buffer.pinned) uploadRounded(master, rounded);
      else kernels.copy({ in: master, out: rounded });
      rounded.release();
    });
  }
}
