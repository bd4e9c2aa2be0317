// DiskHome: state on disk, updated by CPU threads in slots of host memory. Source: Rajbhandari et
// al. 2021 (ZeRO-Infinity).
import type { Optimizer } from '../../optim/optimizer.js';
import type { Device } from '../../runtime/device.js';
import type { DType } from '../../runtime/dtype.js';
import * as kernels from '../../runtime/kernels.generated.js';
import { Event, type Stream } from '../../runtime/stream.js';
import { SwapFile, type SwapFileInfo } from '../../runtime/swap-file.js';
import type { Tensor } from '../../tensor/index.js';
import { copyFlat, sliceFlat } from '../flat.js';
import { type Fragment, overlap, type Range } from '../layout.js';
import type { Partition } from '../partition.js';
import {
  type DiskPlan,
  type DiskTile,
  disposeDiskTile,
  makeDiskTile,
  planTiles,
} from './disk-tiles.js';
import type { TileTensors } from './home.js';
import { type HostBuffers, HostUpdates, memoryForWeights } from './host-updates.js';
import { type Bytes, LentState } from './lent-state.js';
import { pinned, uploadRounded } from './pinned.js';
import { placeInState } from './range-state.js';
import { type SlotOptions, TileSlots } from './tile-slots.js';

/** A partition in host memory. */
interface DiskPartition extends HostBuffers {
  readonly tiles: readonly DiskTile[];
}

export interface DiskHomeOptions {
  optimizer: Optimizer;
  /** All partitions of the home. */
  partitions: readonly Partition[];
  /** Maximum elements per tile, a multiple of 64. */
  tile: number;
  slots: SlotOptions;
  /** Folder of the file, and its label in errors. */
  folder: string;
  label: string;
  /** Bytes per request, queue depth, checksum threads. */
  blockBytes: number;
  depth: number;
  checkers: number;
}

/** The part of a fragment in one tile: its range in the tile's field, and in the fragment. */
interface Portion {
  tile: DiskTile;
  inTile: Range;
  inFragment: Range;
}

/**
 * All work of a tile is ordered by the host stream:
 *
 * 1. Wait for the tile's read.
 * 2. Update.
 * 3. Submit the tile's write.
 * 4. Submit reads of the next tiles in forward order. After the last tiles come the first.
 *
 * So forward and backward of the next step hide the reads of the first tiles.
 *
 * Gradients stay in memory. Host memory: the slots, and one gradient element per parameter, which
 * the update replaces by the weight to upload. If their dtypes differ, one weight more.
 */
export class DiskHome extends HostUpdates<DiskPartition> {
  readonly lendsCopies = true;
  private readonly optimizer: Optimizer;
  private readonly plan: DiskPlan;
  protected readonly slots: TileSlots;
  private readonly file: SwapFile;
  /** In forward order. */
  private readonly order: DiskTile[] = [];
  private readonly turns = new Map<DiskTile, number>();
  /** Acquired tiles, by their tensors. */
  private readonly acquired = new Map<TileTensors, DiskTile>();

  /** Throws DS_IO if the folder is invalid or has too little space, and removes the file then. */
  constructor(device: Device, options: DiskHomeOptions) {
    super(device);
    const { optimizer, partitions } = options;
    this.optimizer = optimizer;
    this.plan = planTiles(partitions, optimizer, options);
    const { slotBytes } = this.plan;
    this.slots = new TileSlots(device, this.host, slotBytes, options.slots);
    try {
      this.file = SwapFile.open({ ...options, ...this.wanted(), memory: this.slots.memory });
    } catch (error) {
      this.slots.dispose();
      super.dispose();
      throw error;
    }
    this.slots.use(this.file);
  }

  private wanted(): { bytes: number; purpose: string } {
    const { bytes, numel } = this.plan;
    const each = numel > 0 ? (bytes / numel).toFixed(1) : '0';
    const count = numel.toLocaleString('en');
    const size = (bytes / 1e9).toPrecision(4);
    return { bytes, purpose: `${size} GB: ${count} parameters, ${each} bytes of state each` };
  }

  /** I/O backend and counters of the file. */
  get disk(): SwapFileInfo {
    return this.file.info;
  }

  adopt(partition: Partition): void {
    const { device, optimizer } = this;
    const grad = pinned(device, [partition.numel], partition.unit.gradDtype);
    const places = this.plan.places.get(partition) ?? [];
    const tiles = places.map((place) => makeDiskTile(place, optimizer, device));
    for (const tile of tiles) this.turns.set(tile, this.order.push(tile) - 1);
    this.buffers.set(partition, {
      ...{ grad, tiles, uploading: false },
      weight: this.weightFor(partition, grad),
      uploaded: new Event(device),
    });
  }

  /**
   * Weights are never in a slot, so an upload does not wait for a disk, nor a slot for an upload.
   */
  protected weightFor(partition: Partition, grad: Tensor): Tensor {
    return memoryForWeights(partition, [grad]);
  }

  acquire(partition: Partition, tile: DiskTile): TileTensors {
    const { grad, weight } = this.buffersOf(partition);
    const { range, sums, starts, arrived, fields } = tile;
    const { group, places } = range;
    this.host.wait(arrived);
    this.slots.open(tile);
    const state = fields.slice(1).map(({ name }) => [name, this.slots.field(tile, name)] as const);
    const tensors = {
      ...{ group, places, sums, starts },
      state: Object.fromEntries(state),
      master: this.slots.field(tile, 'master'),
      grad: sliceFlat(grad, range),
      weight: sliceFlat(weight, range),
    };
    this.acquired.set(tensors, tile);
    return tensors;
  }

  release(tensors: TileTensors): void {
    const { master, grad, weight, state } = tensors;
    for (const slice of [master, grad, weight, ...Object.values(state)]) slice?.release();
    const tile = this.acquired.get(tensors) as DiskTile;
    this.acquired.delete(tensors);
    this.slots.close(tile);
    this.slots.store(tile);
    this.slots.expect(this.after(tile));
  }

  /** All other tiles in order, cyclic. */
  private *after(tile: DiskTile): Generator<DiskTile> {
    const { order } = this;
    const turn = this.turns.get(tile) as number;
    for (let i = 1; i < order.length; ++i) yield order[(turn + i) % order.length] as DiskTile;
  }

  writeMaster(partition: Partition, fragment: Fragment, values: Tensor): void {
    const { compute } = this.device;
    for (const { tile, inTile, inFragment } of this.portionsOf(partition, fragment, 'master')) {
      this.slots.changeField(tile, 'master', (master) => {
        compute.wait(this.computed.record(this.host));
        copyFlat(master, inTile, values, inFragment, compute);
        this.host.wait(this.computed.record(compute));
      });
    }
  }

  /** Lends a copy, which the borrower can write back. */
  lend(partition: Partition, fragment: Fragment, name: string): LentState {
    const { dtype, shape } = this.described(partition, fragment, name);
    const lent = pinned(this.device, shape, dtype);
    const portions = this.portionsOf(partition, fragment, name);
    for (const { tile, inTile, inFragment } of portions) {
      this.slots.readField(tile, name, (field) =>
        copyFlat(lent, inFragment, field, inTile, this.host),
      );
    }
    return new LentState(lent, this.host, () => {
      this.host.wait(this.computed.record(this.device.compute));
      for (const { tile, inTile, inFragment } of portions) {
        this.slots.changeField(tile, name, (field) =>
          copyFlat(field, inTile, lent, inFragment, this.host),
        );
      }
    });
  }

  refresh(partition: Partition): void {
    for (const tile of this.tilesOf(partition)) {
      this.slots.readField(tile, 'master', (master) => {
        this.host.synchronize();
        const weights = sliceFlat(partition.weights, tile.range);
        uploadRounded(master, weights);
        weights.release();
      });
    }
  }

  private described(
    { groups }: Partition,
    fragment: Fragment,
    name: string,
  ): { dtype: DType; shape: readonly number[] } {
    const { entry, numel } = fragment;
    const isAll = numel === entry.numel;
    if (name === 'master') return { dtype: 'f32', shape: isAll ? entry.shape : [numel] };
    const { declared, shape } = placeInState({ optimizer: this.optimizer, groups }, fragment, name);
    return { dtype: declared.dtype, shape };
  }

  /** Returns the ranges of a fragment's state in each tile. */
  private portionsOf(partition: Partition, fragment: Fragment, name: string): Portion[] {
    const { optimizer } = this;
    const tiles = this.tilesOf(partition);
    if (name === 'master') {
      return tiles.flatMap((tile) => portion(tile, tile.range, fragment));
    }
    const { groups } = partition;
    const { range, place, declared } = placeInState({ optimizer, groups }, fragment, name);
    return tiles.flatMap((tile) => {
      if (tile.whole !== range) return [];
      const first = (tile.range.offset - range.offset) / (declared.per ?? 1);
      const { numel } = tile.fields.find((field) => field.name === name) as { numel: number };
      return portion(tile, { offset: first, numel }, place);
    });
  }

  get bytes(): Bytes {
    const all = [...this.buffers.values()].flatMap(tensorsOf);
    const own = new Set([this.control, ...all]);
    const host = [...own].reduce((sum, { bytes }) => sum + bytes, this.slots.bytes);
    return { device: 0, host, disk: this.plan.bytes };
  }

  override dispose(): void {
    super.dispose();
    this.slots.dispose();
  }

  protected disposeBuffers(buffers: DiskPartition): void {
    buffers.tiles.forEach(disposeDiskTile);
    for (const tensor of [buffers.grad, buffers.weight]) tensor.release();
  }
}

/**
 * State on disk for offloaded weights (offload_param). The update writes the weights in their
 * storage, or copies them there.
 */
export class DiskHomeOfOffloadedWeights extends DiskHome {
  protected override weightFor(partition: Partition, grad: Tensor): Tensor {
    return partition.place.memory?.retain() ?? super.weightFor(partition, grad);
  }

  override deliver(): void {}

  override finish(partition: Partition): Stream {
    return this.store(partition);
  }

  override refresh(partition: Partition): void {
    const { place, numel, unit } = partition;
    const rounded = place.memory?.retain() ?? pinned(this.device, [numel], unit.dtype);
    for (const tile of this.tilesOf(partition)) {
      this.slots.readField(tile, 'master', (master) => {
        const out = sliceFlat(rounded, tile.range);
        kernels.copyOnHost({ in: master, out }, this.host);
        out.release();
      });
    }
    place.store(rounded, this.host).synchronize();
    rounded.release();
  }
}

/**
 * Returns the intersection of `wanted` and `held`, the range of a tile's field. Both ranges count
 * from the same origin.
 */
function portion(tile: DiskTile, held: Range, wanted: Range): Portion[] {
  const { offset, numel } = overlap(held, wanted);
  if (numel <= 0) return [];
  const inTile = { offset: offset - held.offset, numel };
  return [{ tile, inTile, inFragment: { offset: offset - wanted.offset, numel } }];
}

function tensorsOf({ grad, weight, tiles }: DiskPartition): Tensor[] {
  return [grad, weight, ...tiles.flatMap(({ sums, starts }) => [...sums, starts])];
}
