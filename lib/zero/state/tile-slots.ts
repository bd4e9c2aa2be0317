// Tiles on a disk: their layout, and slots of host memory for them. One slot is in use while the
// next are read and the last is written. Source: Rajbhandari et al. 2021 (ZeRO-Infinity).

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
  /** The tile with bytes in the slot, or with a submitted read into it. */
  tile: StoredTile | null;
  users: number;
  /** Whether the tile in the slot is newer than the file. */
  changed: boolean;
  /** Time of the last request. */
  requestedAt: number;
}

export interface SlotOptions {
  count: number;
  /** Read tiles before they are opened. */
  readsAhead: boolean;
  /** Write tiles while others are computed. */
  writesBehind: boolean;
}

/** Elements of a fragment in one tile: their range in a field of the tile, and in the fragment. */
interface Portion {
  tile: StoredTile;
  inTile: Range;
  inFragment: Range;
}

/** Returns the elements of the range `requested` in a tile with the range `stored`. */
export function portionOf(tile: StoredTile, stored: Range, requested: Range): Portion[] {
  const { offset, numel } = overlap(stored, requested);
  if (numel <= 0) return [];
  const inTile = { offset: offset - stored.offset, numel };
  return [{ tile, inTile, inFragment: { offset: offset - requested.offset, numel } }];
}

/**
 * All transfers are submitted in the order of one stream, which waits for a tile's bytes at open().
 * In the file, a transfer waits for earlier ones of the same slot or tile.
 */
export class TileSlots {
  private readonly slots: readonly Slot[];
  /** Tiles that the file contains. */
  private readonly stored = new Set<StoredTile>();
  private clock = 0;
  private backing: SwapFile | null = null;

  constructor(
    device: Device,
    private readonly stream: Stream,
    /** Bytes of the largest tile. */
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

  /** Sets the file of tiles without a slot. Call it before the first open(). */
  use(file: SwapFile): void {
    this.backing = file;
  }

  /**
   * Loads a tile; later work of the stream may change it until close(). Throws DS_IO if the disk
   * fails.
   */
  open(tile: StoredTile): void {
    this.occupy(this.slotOf(tile) ?? this.load(tile), tile);
  }

  /**
   * Runs `body` with a field of a tile. It may change the field, or replace the whole tile, so that
   * nothing is read from the file. `body` enqueues on the stream, or waits.
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

  /** Copies portions of a field to `lent`. The returned function copies them back. */
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

  /** Returns a field of an open tile, flat. The caller releases it. */
  field(tile: StoredTile, name: string): Tensor {
    const { memory } = required(this.slotOf(tile));
    const field = required(tile.fields.find((field) => field.name === name));
    return fieldIn(memory, field);
  }

  /** Ends open(). The tile's bytes have changed. */
  close(tile: StoredTile): void {
    const slot = required(this.slotOf(tile));
    slot.users--;
    slot.changed = true;
  }

  /** Writes a changed tile to disk; other tiles continue meanwhile. */
  store(tile: StoredTile): void {
    const slot = this.slotOf(tile);
    if (!slot?.changed) return;
    this.write(slot, tile);
    if (!this.options.writesBehind) this.file.wait(rangeOf(slot, tile), this.stream);
  }

  /** Announces the next tiles in order. As many as fit into the slots are read. */
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

  /** Keeps the slot for the tile until users is 0 again. */
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

  /** Assigns the least recently requested free slot to the tile, and submits its read. */
  private load(tile: StoredTile): Slot {
    const slot = this.reassign(tile);
    if (this.stored.has(tile)) this.file.read(tile.offset, rangeOf(slot, tile), this.stream);
    else this.fill(slot, tile);
    return slot;
  }

  /** Assigns the least recently requested free slot to the tile, with undefined contents. */
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

  /** Writes the initial values of a tile that was never written. */
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

/** Alignment of tensors in a slot in bytes: more than a cache line. */
const FIELD_ALIGNMENT = 256;

/** The folder and label of a swap file, and the sizes of its requests. */
export type DiskAccess = Omit<SwapFileOptions, 'bytes' | 'purpose' | 'memory'>;

interface Field {
  /** "master", or the name of a state. */
  readonly name: string;
  readonly dtype: DType;
  /** Bytes from the start of the tile. */
  readonly offset: number;
  readonly numel: number;
  /** Value of each element before the first update. */
  readonly initial: number;
}

export interface StoredTile {
  readonly fields: readonly Field[];
  /** Offset in the file in bytes, a multiple of the block size. */
  readonly offset: number;
  /** A multiple of the transfer alignment. */
  readonly bytes: number;
}

/** The fields of a tile that updates read and write. */
interface TilePlace extends StoredTile {
  /** Range in the partition. `groupRange` is the group's range that contains it. */
  readonly range: GroupRange;
  readonly groupRange: GroupRange;
}

/** A tile with its state on a disk: `state` is empty. */
export interface DiskTile extends StateTile, TilePlace {
  readonly range: GroupRange;
}

/** The tiles of each owner in a file. */
interface DiskPlan<Owner, Tile extends StoredTile> {
  readonly tiles: ReadonlyMap<Owner, readonly Tile[]>;
  readonly bytes: number;
  /** Bytes of the largest tile. */
  readonly slotBytes: number;
}

/** Places the tiles of all owners in a file, each at the start of a block. */
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
): DiskPlan<Partition, TilePlace> => {
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

/** Creates a tile. disposeTile() releases it. */
export function createDiskTile(place: TilePlace, optimizer: Optimizer, device: Device): DiskTile {
  const allocate = allocateFilled.bind(null, device);
  const tables = allocateTables(place.range, optimizer, allocate);
  return { ...place, ...tables, state: {}, ...createTileEvents(device) };
}
