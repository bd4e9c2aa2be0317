// NvmeState: optimizer state on a disk. CPU threads update it in slots of host memory. Source:
// Rajbhandari et al. 2021 (ZeRO-Infinity).

import type { Optimizer } from '../../../optim/optimizer.js';
import { hostKernels, type UpdateKernels } from '../../../optim/update-kernels.js';
import type { Device } from '../../../runtime/device.js';
import type { DType } from '../../../runtime/dtype.js';
import { required } from '../../../runtime/required.js';
import type { Stream } from '../../../runtime/stream.js';
import { SwapFile, type SwapFileInfo } from '../../../runtime/swap-file.js';
import { copyFlat } from '../../../tensor/flat.js';
import type { Tensor } from '../../../tensor/index.js';
import type { Fragment, Range } from '../../layout.js';
import type { Partition } from '../../partition.js';
import { allocatePinned, type Bytes, LentState } from '../memory.js';
import type {
  OpenTile,
  Placement,
  PlacementCosts,
  ShardPart,
  StateStorage,
  TileWindows,
} from '../strategies.js';
import {
  createDiskTile,
  type DiskAccess,
  type DiskTile,
  planTiles,
  portionOf,
  type SlotOptions,
  TileSlots,
} from '../tile-slots.js';
import { disposeTile, locateInState, type StateTile, stateTensors } from '../tiles.js';
import { HostStreams } from './host.js';

interface NvmeStateOptions extends DiskAccess {
  optimizer: Optimizer;
  /** All partitions of the state. */
  partitions: readonly Partition[];
  /** Maximum elements per tile, a multiple of 64. */
  tile: number;
  slots: SlotOptions;
}

/**
 * The disk placement. The stream of updates orders the work of a tile: wait for its read, update
 * it, write it, and read the next tiles in forward order. After the last tile it reads the first
 * ones again, so forward and backward of the next step hide these reads.
 *
 * Host memory: the slots, and one element per parameter that holds the gradient and then the
 * updated weight. If their dtypes differ, one weight more. Weights are never in a slot, so uploads
 * and the disk do not wait for each other.
 */
export class NvmeState implements Placement, StateStorage, TileWindows {
  static readonly costs: PlacementCosts = {
    state: 'disk',
    updates: 'host',
    windows: null,
    largestTile: Infinity,
  };
  /**
   * This object is also the storage and the windows of the placement, because the slots serve both.
   */
  readonly storage = this;
  readonly windows = this;
  readonly traffic: HostStreams;
  readonly kernels: UpdateKernels;
  readonly updatesOnDevice = false;
  readonly receivesGradients = true;
  readonly lendsCopies = true;
  private readonly optimizer: Optimizer;
  private readonly plan: ReturnType<typeof planTiles>;
  private readonly slots: TileSlots;
  private readonly file: SwapFile;
  /** All tiles, in forward order. */
  private readonly inOrder: DiskTile[] = [];
  private readonly positions = new Map<DiskTile, number>();
  /** The open tiles, by their master tensor. */
  private readonly opened = new Map<Tensor, DiskTile>();

  /** Throws DS_IO if the folder is invalid or has too little space. It then removes the file. */
  constructor(
    private readonly device: Device,
    options: NvmeStateOptions,
  ) {
    const { optimizer, partitions } = options;
    this.optimizer = optimizer;
    this.traffic = new HostStreams(device);
    this.kernels = hostKernels(this.traffic.order);
    this.plan = planTiles(partitions, optimizer, options);
    const { slotBytes } = this.plan;
    this.slots = new TileSlots(device, this.traffic.order, slotBytes, options.slots);
    try {
      this.file = SwapFile.open({ ...options, ...this.fileSize(), memory: this.slots.memory });
    } catch (error) {
      this.slots.dispose();
      this.traffic.dispose();
      throw error;
    }
    this.slots.use(this.file);
  }

  private fileSize(): { bytes: number; purpose: string } {
    const { bytes } = this.plan;
    const numel = [...this.plan.tiles.keys()].reduce((sum, key) => sum + key.numel, 0);
    const each = numel > 0 ? (bytes / numel).toFixed(1) : '0';
    const count = numel.toLocaleString('en');
    const size = (bytes / 1e9).toPrecision(4);
    return { bytes, purpose: `${size} GB: ${count} parameters, ${each} bytes of state each` };
  }

  get disk(): SwapFileInfo {
    return this.file.info;
  }

  get order(): Stream {
    return this.traffic.order;
  }

  get bytes(): Bytes {
    return { device: 0, host: this.traffic.bytes + this.slots.bytes, disk: this.plan.bytes };
  }

  allocate(numel: number, dtype: DType): Tensor {
    return allocatePinned(this.device, [numel], dtype);
  }

  masterMemory(): null {
    return null;
  }

  stateOf(partition: Partition): Pick<ShardPart, 'ranges' | 'tiles'> {
    const places = this.plan.tiles.get(partition) ?? [];
    const tiles = places.map((place) => createDiskTile(place, this.optimizer, this.device));
    for (const tile of tiles) this.positions.set(tile, this.inOrder.push(tile) - 1);
    return { ranges: [], tiles };
  }

  tensorsOf({ tiles }: ShardPart): Tensor[] {
    return stateTensors(tiles);
  }

  open(stateTile: StateTile): OpenTile {
    const tile = stateTile as DiskTile;
    this.slots.open(tile);
    const state = tile.fields
      .slice(1)
      .map(({ name }) => [name, this.slots.field(tile, name)] as const);
    const master = this.slots.field(tile, 'master');
    this.opened.set(master, tile);
    return { master, state: Object.fromEntries(state) };
  }

  close({ master, state }: OpenTile): void {
    for (const slice of [master, ...Object.values(state)]) slice.release();
    const tile = required(this.opened.get(master));
    this.opened.delete(master);
    this.slots.close(tile);
    this.slots.store(tile);
    this.slots.expect(this.tilesAfter(tile));
  }

  /** Yields all other tiles. After the last tile follows the first. */
  private *tilesAfter(tile: DiskTile): Generator<DiskTile> {
    const { inOrder } = this;
    const position = required(this.positions.get(tile));
    for (let i = 1; i < inOrder.length; ++i)
      yield required(inOrder[(position + i) % inOrder.length]);
  }

  writeMaster(part: ShardPart, fragment: Fragment, values: Tensor): void {
    const { compute } = this.device;
    const { order, computed } = this.traffic;
    for (const { tile, inTile, inFragment } of this.portionsOf(part, fragment, 'master')) {
      this.slots.withField(tile, 'master', 'change', (master) => {
        compute.wait(computed.record(order));
        copyFlat(master, inTile, values, inFragment, compute);
        order.wait(computed.record(compute));
      });
    }
  }

  followCompute(): void {}

  /** Lends a copy. Its keep() writes the copy back. */
  lend(part: ShardPart, fragment: Fragment, name: string): LentState {
    const { order, computed } = this.traffic;
    const { dtype, shape } = this.describeField(part, fragment, name);
    const lent = allocatePinned(this.device, shape, dtype);
    const copyBack = this.slots.copyOut(lent, name, this.portionsOf(part, fragment, name));
    return new LentState(lent, order, () => {
      order.wait(computed.record(this.device.compute));
      copyBack();
    });
  }

  forEachMaster({ tiles }: ShardPart, body: (master: Tensor, range: Range) => void): void {
    for (const tile of tiles as readonly DiskTile[]) {
      this.slots.withField(tile, 'master', 'read', (master) => {
        this.traffic.order.synchronize();
        body(master, tile.range);
      });
    }
  }

  private describeField(
    { partition: { groups } }: ShardPart,
    fragment: Fragment,
    name: string,
  ): { dtype: DType; shape: readonly number[] } {
    const { entry, numel } = fragment;
    const isAll = numel === entry.numel;
    if (name === 'master') return { dtype: 'f32', shape: isAll ? entry.shape : [numel] };
    const { declared, shape } = locateInState(
      { optimizer: this.optimizer, groups },
      fragment,
      name,
    );
    return { dtype: declared.dtype, shape };
  }

  /** Returns the portions of a fragment's masters or state `name`, by tile. */
  private portionsOf({ partition, tiles }: ShardPart, fragment: Fragment, name: string) {
    const { optimizer } = this;
    const all = tiles as readonly DiskTile[];
    if (name === 'master') return all.flatMap((tile) => portionOf(tile, tile.range, fragment));
    const { groups } = partition;
    const { range, place, declared } = locateInState({ optimizer, groups }, fragment, name);
    return all.flatMap((tile) => {
      if (tile.groupRange !== range) return [];
      const first = (tile.range.offset - range.offset) / (declared.per ?? 1);
      const { numel } = tile.fields.find((field) => field.name === name) as { numel: number };
      return portionOf(tile, { offset: first, numel }, place);
    });
  }

  synchronize(): void {
    this.traffic.synchronize();
  }

  release({ tiles }: ShardPart): void {
    tiles.forEach(disposeTile);
  }

  dispose(): void {
    this.traffic.dispose();
    this.slots.dispose();
  }
}
