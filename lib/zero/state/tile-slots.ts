// TileSlots: slots of pinned host memory for tiles on a disk. While an update uses one slot, the
// file engine reads the next tiles and writes the last one. This file also plans the layout of the
// file. Source: Rajbhandari et al. 2021 (ZeRO-Infinity).

import type { Optimizer } from '../../optim/optimizer.js';
import { Buffer } from '../../runtime/buffer.js';
import type { Device } from '../../runtime/device.js';
import { type DType, dtypeSize } from '../../runtime/dtype.js';
import type { HostRange } from '../../runtime/file.js';
import * as kernels from '../../runtime/kernels.generated.js';
import { required } from '../../runtime/required.js';
import type { Stream } from '../../runtime/stream.js';
import { SWAP_ALIGNMENT, type SwapFile, type SwapFileOptions } from '../../runtime/swap-file.js';
import { copyFlat } from '../../tensor/flat.js';
import { held, Tensor } from '../../tensor/index.js';
import { alignUp, type GroupRange, overlap, type Range } from '../layout.js';
import type { Partition } from '../partition.js';
import { allocateFilled } from './memory.js';
import { allocateTables, createTileEvents, cutRange, type StateTile, stateSizes } from './tiles.js';

interface Slot {
  readonly memory: Buffer;
  /** The tile in the slot, from the submission of its read. */
  tile: StoredTile | null;
  users: number;
  /** Whether the tile in the slot is newer than the file. */
  changed: boolean;
  /** Logical time of the last request. The slot with the smallest time is reassigned first. */
  requestedAt: number;
}

export interface SlotOptions {
  count: number;
  /** Whether to read tiles before they are opened. */
  readsAhead: boolean;
  /** Whether updates continue while tiles are written. */
  writesBehind: boolean;
}

/** Elements of a fragment in one tile: their range in a field of the tile, and in the fragment. */
interface Portion {
  tile: StoredTile;
  inTile: Range;
  inFragment: Range;
}

/**
 * Returns the intersection of a tile's field (range `stored`) and the range `requested`. Empty if
 * they do not meet.
 */
export function portionOf(tile: StoredTile, stored: Range, requested: Range): Portion[] {
  const { offset, numel } = overlap(stored, requested);
  if (numel <= 0) return [];
  const inTile = { offset: offset - stored.offset, numel };
  return [{ tile, inTile, inFragment: { offset: offset - requested.offset, numel } }];
}

/**
 * A cache of tiles with write-back. One stream orders all transfers. At open(), the stream waits
 * for the bytes of the tile. In the file, a transfer waits for earlier ones of the same slot or
 * tile.
 */
export class TileSlots {
  private readonly slots: readonly Slot[];
  /** Tiles that have been written to the file. */
  private readonly stored = new Set<StoredTile>();
  private clock = 0;
  private backing: SwapFile | null = null;

  constructor(
    device: Device,
    private readonly stream: Stream,
    /** Size of a slot: the bytes of the largest tile. */
    private readonly slotBytes: number,
    private readonly options: SlotOptions,
  ) {
    this.slots = Array.from({ length: options.count }, () => ({
      memory: Buffer.allocatePinned(device, slotBytes),
      tile: null,
      users: 0,
      changed: false,
      requestedAt: 0,
    }));
  }

  get memory(): HostRange[] {
    return this.slots.map(({ memory }) => ({ buffer: memory, offset: 0, bytes: this.slotBytes }));
  }

  get bytes(): number {
    return this.slots.length * this.slotBytes;
  }

  /** Sets the file that stores the tiles. Call it before the first open(). */
  use(file: SwapFile): void {
    this.backing = file;
  }

  /**
   * Loads a tile into a slot. Later work of the stream may use and change it until close(). Throws
   * DS_IO if the disk fails.
   */
  open(tile: StoredTile): void {
    this.occupy(this.slotOf(tile) ?? this.load(tile), tile);
  }

  /**
   * Calls `body` with a field of a tile. `body` enqueues work on the stream, or waits. With
   * "change", it may write the field. With "replace", it writes the whole tile, so nothing is read
   * from the file.
   */
  withField(
    tile: StoredTile,
    name: string,
    use: 'read' | 'change' | 'replace',
    body: (field: Tensor) => void,
  ): void {
    const slot = this.slotOf(tile) ?? (use === 'replace' ? this.reassign(tile) : this.load(tile));
    this.occupy(slot, tile);
    const field = this.field(tile, name);
    if (use !== 'read') slot.changed = true;
    try {
      body(field);
    } finally {
      field.release();
      slot.users--;
    }
  }

  /** Copies portions of a field to `lent`. Returns a function that copies them back. */
  copyOut(lent: Tensor, name: string, portions: readonly Portion[]): () => void {
    const { stream } = this;
    const each = (use: 'read' | 'change', copy: (field: Tensor, at: Portion) => void): void => {
      for (const portion of portions)
        this.withField(portion.tile, name, use, (field) => copy(field, portion));
    };
    each('read', (field, at) => copyFlat(lent, at.inFragment, field, at.inTile, stream));
    return () =>
      each('change', (field, at) => copyFlat(field, at.inTile, lent, at.inFragment, stream));
  }

  /** Returns a flat view of a field in an open tile. The caller releases it. */
  field(tile: StoredTile, name: string): Tensor {
    const { memory } = required(this.slotOf(tile));
    const field = required(tile.fields.find((field) => field.name === name));
    return fieldIn(memory, field);
  }

  /** Ends open(), and marks the tile as changed. */
  close(tile: StoredTile): void {
    const slot = required(this.slotOf(tile));
    slot.users--;
    slot.changed = true;
  }

  /** Writes a changed tile to the file. Without writesBehind, the stream waits for the write. */
  store(tile: StoredTile): void {
    const slot = this.slotOf(tile);
    if (!slot?.changed) return;
    this.write(slot, tile);
    if (!this.options.writesBehind) this.file.wait(rangeOf(slot, tile), this.stream);
  }

  /** Announces the next tiles in order. Reads as many as fit into the slots. */
  expect(tiles: Iterable<StoredTile>): void {
    if (!this.options.readsAhead) return;
    let room = this.slots.length - 1;
    for (const tile of tiles) {
      if (room-- === 0) return;
      const slot = this.slotOf(tile);
      if (slot) slot.requestedAt = ++this.clock;
      else if (this.slots.some(({ users }) => users === 0)) {
        this.load(tile).requestedAt = ++this.clock;
      }
    }
  }

  dispose(): void {
    this.backing?.dispose();
    for (const { memory } of this.slots) memory.release();
  }

  /** Makes the stream wait for the tile. Reserves the slot until `users` is 0 again. */
  private occupy(slot: Slot, tile: StoredTile): void {
    slot.requestedAt = ++this.clock;
    this.file.wait(rangeOf(slot, tile), this.stream);
    slot.users++;
  }

  private get file(): SwapFile {
    return required(this.backing);
  }

  private slotOf(tile: StoredTile): Slot | undefined {
    return this.slots.find((slot) => slot.tile === tile);
  }

  /** Reassigns a slot to the tile, and submits its read or writes its initial values. */
  private load(tile: StoredTile): Slot {
    const slot = this.reassign(tile);
    if (this.stored.has(tile)) this.file.read(tile.offset, rangeOf(slot, tile), this.stream);
    else this.fill(slot, tile);
    return slot;
  }

  /** Assigns the least recently requested free slot to the tile. The contents are undefined. */
  private reassign(tile: StoredTile): Slot {
    const free = this.slots.filter(({ users }) => users === 0);
    const slot = free.reduce((oldest, slot) =>
      slot.requestedAt < oldest.requestedAt ? slot : oldest,
    );
    if (slot.tile && slot.changed) this.write(slot, slot.tile);
    slot.tile = tile;
    return slot;
  }

  private write(slot: Slot, tile: StoredTile): void {
    this.file.write(tile.offset, rangeOf(slot, tile), this.stream);
    this.stored.add(tile);
    slot.changed = false;
  }

  /** Writes initial values to a tile that is not in the file yet. */
  private fill(slot: Slot, tile: StoredTile): void {
    this.file.wait(rangeOf(slot, tile), this.stream);
    for (const field of tile.fields) {
      const out = fieldIn(slot.memory, field);
      kernels.fillOnHost({ out, value: field.initial }, this.stream);
      out.release();
    }
    slot.changed = true;
  }
}

function rangeOf({ memory }: Slot, { bytes }: StoredTile): HostRange {
  return { buffer: memory, offset: 0, bytes };
}

function fieldIn(memory: Buffer, { dtype, offset, numel }: Field): Tensor {
  const first = offset / dtypeSize(dtype);
  return held(() => new Tensor(memory.retain(), dtype, [numel], undefined, first));
}

/** Alignment of fields in a tile, in bytes. It is larger than a cache line. */
const FIELD_ALIGNMENT = 256;

/** Options of a swap file: folder, label, and sizes of requests. */
export type DiskAccess = Omit<SwapFileOptions, 'bytes' | 'purpose' | 'memory'>;

interface Field {
  /** "master", or the name of a state tensor. */
  readonly name: string;
  readonly dtype: DType;
  /** Offset in bytes from the start of the tile. */
  readonly offset: number;
  readonly numel: number;
  /** Initial value of each element. */
  readonly initial: number;
}

export interface StoredTile {
  readonly fields: readonly Field[];
  /** Offset in the file in bytes, a multiple of the block size. */
  readonly offset: number;
  /** A multiple of SWAP_ALIGNMENT. */
  readonly bytes: number;
}

/** A tile of optimizer state, before its tensors exist. */
interface TileLayout extends StoredTile {
  /** Range in the partition, and the range of the optimizer group that contains it. */
  readonly range: GroupRange;
  readonly groupRange: GroupRange;
}

/** A tile with its state on a disk. Its `state` is empty: open() returns the tensors. */
export interface DiskTile extends StateTile, TileLayout {
  readonly range: GroupRange;
}

/** A file with the tiles of several owners, such as partitions. */
interface DiskPlan<Owner, Tile extends StoredTile> {
  readonly tiles: ReadonlyMap<Owner, readonly Tile[]>;
  readonly bytes: number;
  /** Bytes of the largest tile. */
  readonly slotBytes: number;
}

/**
 * Assigns file offsets to the tiles of all owners. Each tile starts at a multiple of `blockBytes`.
 */
export function planFile<Owner, Tile extends Omit<StoredTile, 'offset'>>(
  owners: readonly (readonly [owner: Owner, tiles: readonly Tile[]])[],
  blockBytes: number,
): DiskPlan<Owner, Tile & StoredTile> {
  let [end, slotBytes] = [0, 0];
  const placeTile = (tile: Tile): Tile & StoredTile => {
    const offset = end;
    end = alignUp(end + tile.bytes, blockBytes);
    slotBytes = Math.max(slotBytes, tile.bytes);
    return { ...tile, offset };
  };
  const tiles = new Map(owners.map(([owner, ownTiles]) => [owner, ownTiles.map(placeTile)]));
  return { tiles, bytes: end, slotBytes };
}

/** Divides partitions into tiles of at most `size` elements. */
export const planTiles = (
  partitions: readonly Partition[],
  optimizer: Optimizer,
  { tile: size, blockBytes }: { tile: number; blockBytes: number },
): DiskPlan<Partition, TileLayout> => {
  const cutGroup = (groupRange: GroupRange) =>
    cutRange(groupRange, optimizer, size).map((range) => {
      return { range, groupRange, ...fieldsOf(range, optimizer) };
    });
  return planFile(
    partitions.map((partition) => [partition, partition.groups.flatMap(cutGroup)] as const),
    blockBytes,
  );
};

function fieldsOf(range: GroupRange, optimizer: Optimizer): Pick<StoredTile, 'fields' | 'bytes'> {
  const master = { name: 'master', dtype: 'f32', numel: range.numel, initial: 0 } as const;
  let end = 0;
  const fields = [master, ...stateSizes(range, optimizer)].map((size) => {
    const field = { ...size, offset: end };
    end = alignUp(end + size.numel * dtypeSize(size.dtype), FIELD_ALIGNMENT);
    return field;
  });
  return { fields, bytes: alignUp(end, SWAP_ALIGNMENT) };
}

/** Creates a tile. The caller releases it with disposeTile(). */
export function createDiskTile(place: TileLayout, optimizer: Optimizer, device: Device): DiskTile {
  const allocate = allocateFilled.bind(null, device);
  const tables = allocateTables(place.range, optimizer, allocate);
  return { ...place, ...tables, state: {}, ...createTileEvents(device) };
}
