// DiskWeights: weights on a disk, with slots of pinned host memory that hold the next units.
// Source: Rajbhandari et al. 2021 (ZeRO-Infinity).
import type { Device } from '../../runtime/device.js';
import { dtypeSize } from '../../runtime/dtype.js';
import { Event, Stream } from '../../runtime/stream.js';
import { SWAP_ALIGNMENT, SwapFile, type SwapFileInfo } from '../../runtime/swap-file.js';
import { copyFlat, sliceFlat } from '../../tensor/flat.js';
import type { Tensor } from '../../tensor/index.js';
import { alignUp, type Fragment, type Range } from '../layout.js';
import { MemoryStore, type WeightStore, writeTensor } from '../partition.js';
import type { WeightUnit } from '../unit.js';
import { allocatePinned, type Bytes, LentState } from './memory.js';
import { type DiskAccess, planFile, portionOf, type StoredTile, TileSlots } from './tile-slots.js';
import { cutEvenly } from './tiles.js';

interface UnitWeights {
  unit: WeightUnit;
  numel: number;
}

interface DiskWeightsOptions extends DiskAccess {
  /** The weights of all units on this rank, in forward order. */
  weights: readonly UnitWeights[];
  /** Maximum elements that stay in pinned memory instead of the disk. */
  maxInMemory: number;
  /** Number of slots, and the maximum elements per slot. */
  slots: number;
  slotNumel: number;
}

/** A range of a unit's weights. One transfer moves one tile. */
interface WeightTile extends StoredTile {
  /** Range in this rank's shard of the unit. */
  readonly range: Range;
}

const NAME = 'weights';

/**
 * Returns the units that stay in memory, at most `max` elements. They are spread evenly over
 * forward. While the device computes with them, the disk reads the others.
 */
export function chooseResidents(
  weights: readonly UnitWeights[],
  max: number,
): ReadonlySet<WeightUnit> {
  const total = weights.reduce((sum, { numel }) => sum + numel, 0);
  const residents = new Set<WeightUnit>();
  let [passedElements, residentElements] = [0, 0];
  for (const { unit, numel } of weights) {
    passedElements += numel;
    if (residentElements + numel > Math.ceil((max / total) * passedElements)) continue;
    residents.add(unit);
    residentElements += numel;
  }
  for (const { unit, numel } of weights) {
    if (residents.has(unit) || residentElements + numel > max) continue;
    residents.add(unit);
    residentElements += numel;
  }
  return residents;
}

/**
 * Storage of shards on a disk. One stream orders all work on the slots. It reads a tile from the
 * file and copies it to the device, or copies updated weights in and writes them to the file. The
 * caller announces the next units with expect().
 */
export class DiskWeights {
  private readonly stream: Stream;
  private readonly mark: Event;
  private readonly stores = new Map<WeightUnit, DiskStore>();
  private readonly residents: ReadonlySet<WeightUnit>;
  private readonly slots: TileSlots;
  private readonly file: SwapFile | null;

  /** Throws DS_IO if the folder has too little space. It then removes the file. */
  constructor(
    private readonly device: Device,
    options: DiskWeightsOptions,
  ) {
    const { weights, blockBytes, slotNumel } = options;
    this.residents = chooseResidents(weights, options.maxInMemory);
    const leaving = weights.filter(({ unit }) => !this.residents.has(unit));
    const plan = planFile(
      leaving.map(({ unit, numel }) => [unit, tilesOf(unit, cutEvenly(numel, slotNumel))] as const),
      blockBytes,
    );
    this.stream = Stream.create(device, 'weights and the disk');
    this.mark = new Event(device);
    const use = { count: leaving.length > 0 ? options.slots : 0, ...bothWays };
    this.slots = new TileSlots(device, this.stream, plan.slotBytes, use);
    const context = { device, stream: this.stream, mark: this.mark, slots: this.slots };
    for (const [unit, tiles] of plan.tiles)
      this.stores.set(unit, new DiskStore(context, unit, tiles));
    try {
      this.file = leaving.length > 0 ? this.open(leaving, plan.bytes, options) : null;
    } catch (error) {
      this.dispose();
      throw error;
    }
    if (this.file) this.slots.use(this.file);
  }

  /** I/O backend and counters of the file. Null if all weights stay in memory. */
  get disk(): SwapFileInfo | null {
    return this.file?.info ?? null;
  }

  /** Bytes of all slots together. */
  get slotBytes(): number {
    return this.slots.bytes;
  }

  /** Returns uninitialized storage for a shard of `numel` elements. The caller disposes it. */
  create(unit: WeightUnit, numel: number): WeightStore {
    return (
      this.stores.get(unit) ?? new MemoryStore(allocatePinned(this.device, [numel], unit.dtype))
    );
  }

  /** Announces the next units in order. Reads as many of their tiles as fit into the slots. */
  expect(units: Iterable<WeightUnit>): void {
    if (this.file) this.slots.expect(this.tilesOf(units));
  }

  dispose(): void {
    this.stream.synchronize();
    this.slots.dispose();
    this.mark.dispose();
    this.stream.dispose();
  }

  private *tilesOf(units: Iterable<WeightUnit>): Generator<WeightTile> {
    for (const unit of units) yield* this.stores.get(unit)?.tiles ?? [];
  }

  private open(stored: readonly UnitWeights[], bytes: number, options: DiskAccess): SwapFile {
    const numel = stored.reduce((sum, weights) => sum + weights.numel, 0);
    const size = (bytes / 1e9).toPrecision(4);
    const purpose = `${size} GB: the weights of ${numel.toLocaleString('en')} parameters`;
    return SwapFile.open({ ...options, bytes, purpose, memory: this.slots.memory });
  }
}

const bothWays = { readsAhead: true, writesBehind: true };

/** Returns the tiles of a unit's weights. Each has one field. */
const tilesOf = ({ dtype }: WeightUnit, ranges: readonly Range[]) =>
  ranges.map((range) => {
    const { numel } = range;
    const fields = [{ name: NAME, dtype, offset: 0, numel, initial: 0 }];
    return { range, fields, bytes: alignUp(numel * dtypeSize(dtype), SWAP_ALIGNMENT) };
  });

interface SlotContext {
  device: Device;
  stream: Stream;
  mark: Event;
  slots: TileSlots;
}

class DiskStore implements WeightStore {
  readonly memory = null;

  constructor(
    private readonly context: SlotContext,
    private readonly unit: WeightUnit,
    readonly tiles: readonly WeightTile[],
  ) {}

  get bytes(): Bytes {
    return { device: 0, host: 0, disk: this.tiles.reduce((sum, { bytes }) => sum + bytes, 0) };
  }

  load(to: Tensor, stream: Stream): void {
    const { slots, stream: ownStream } = this.context;
    this.orderAfter(stream, ownStream);
    for (const tile of this.tiles) {
      slots.withField(tile, NAME, 'read', (weights) =>
        copyFlat(to, tile.range, weights, wholeOf(tile), ownStream),
      );
    }
    this.orderAfter(ownStream, stream);
  }

  store(from: Tensor, stream: Stream): Stream {
    const { slots, stream: ownStream } = this.context;
    this.orderAfter(stream, ownStream);
    for (const tile of this.tiles) {
      const part = sliceFlat(from, tile.range);
      slots.withField(tile, NAME, 'replace', (weights) => writeTensor(weights, part, ownStream));
      part.release();
      slots.store(tile);
    }
    return ownStream;
  }

  /** Lends a copy. Its keep() writes the copy back. */
  lend(fragment: Fragment): LentState {
    const { device, slots, stream: ownStream } = this.context;
    const { entry, offset, numel } = fragment;
    const lent = allocatePinned(
      device,
      numel === entry.numel ? entry.shape : [numel],
      this.unit.dtype,
    );
    const fragmentRange = { offset, numel };
    const portions = this.tiles.flatMap((tile) => portionOf(tile, tile.range, fragmentRange));
    const copyBack = slots.copyOut(lent, NAME, portions);
    return new LentState(lent, ownStream, () => {
      this.orderAfter(device.compute, ownStream);
      copyBack();
      this.orderAfter(ownStream, device.compute);
    });
  }

  dispose(): void {}

  /** Makes later work of `second` wait for the work of `first` so far. */
  private orderAfter(first: Stream, second: Stream): void {
    second.wait(this.context.mark.record(first));
  }
}

const wholeOf = ({ range }: WeightTile): Range => ({ offset: 0, numel: range.numel });
