// A few slots of host memory for tiles that are on disk: one is used while the next are read and
// the last is written. Source: Rajbhandari et al. 2021 (ZeRO-Infinity).
import { Buffer } from '../../runtime/buffer.js';
import type { Device } from '../../runtime/device.js';
import { dtypeSize } from '../../runtime/dtype.js';
import type { HostRange } from '../../runtime/file.js';
import * as kernels from '../../runtime/kernels.generated.js';
import type { Stream } from '../../runtime/stream.js';
import type { SwapFile } from '../../runtime/swap-file.js';
import { held, Tensor } from '../../tensor/index.js';
import type { Field, StoredTile } from './disk-tiles.js';

interface Slot {
  readonly memory: Buffer;
  /** Whose bytes it has, or gets from a transfer that was submitted. */
  tile: StoredTile | null;
  /** Who has it open. */
  users: number;
  /** The file has other bytes of the tile. */
  changed: boolean;
  /** When it was last wanted. */
  wanted: number;
}

/** How slots are used. */
export interface SlotOptions {
  count: number;
  /** Tiles are read before they are opened. */
  readsAhead: boolean;
  /** Tiles are written while others are computed. */
  writesBehind: boolean;
}

/**
 * Everything is submitted in the order of one stream, which opens a tile when its bytes are there.
 * The file sees to it that a transfer waits for those before it that touch the same slot, or the
 * same tile.
 */
export class TileSlots {
  private readonly slots: readonly Slot[];
  /** Tiles that the file has. */
  private readonly stored = new Set<StoredTile>();
  private clock = 0;
  private backing: SwapFile | null = null;

  constructor(
    device: Device,
    private readonly stream: Stream,
    /** Of the largest tile. */
    private readonly slotBytes: number,
    private readonly options: SlotOptions,
  ) {
    this.slots = Array.from({ length: options.count }, () => ({
      memory: Buffer.allocatePinned(device, slotBytes),
      ...{ tile: null, users: 0, changed: false, wanted: 0 },
    }));
  }

  /** The memory that transfers use. */
  get memory(): HostRange[] {
    return this.slots.map(({ memory }) => ({ buffer: memory, offset: 0, bytes: this.slotBytes }));
  }

  get bytes(): number {
    return this.slots.length * this.slotBytes;
  }

  /** Where tiles are that have no slot. Comes before the first is opened. */
  use(file: SwapFile): void {
    this.backing = file;
  }

  /**
   * Later work of the stream sees and changes the tile's bytes, until close(). Throws DS_IO where
   * streams run at once.
   */
  open(tile: StoredTile): void {
    this.occupy(this.slotOf(tile) ?? this.load(tile), tile);
  }

  /** Runs `body`, which enqueues on the stream or waits, with a field of a tile to read. */
  readField(tile: StoredTile, name: string, body: (field: Tensor) => void): void {
    this.lend(this.slotOf(tile) ?? this.load(tile), tile, name, body);
  }

  /** The same for a `body` that changes the field. */
  changeField(tile: StoredTile, name: string, body: (field: Tensor) => void): void {
    this.lendToChange(this.slotOf(tile) ?? this.load(tile), tile, name, body);
  }

  /** The same for one that writes all of a tile: what the file has of it is of no account. */
  replaceField(tile: StoredTile, name: string, body: (field: Tensor) => void): void {
    this.lendToChange(this.slotOf(tile) ?? this.takeOver(tile), tile, name, body);
  }

  /** A field of an open tile, flat; the caller releases it. */
  field(tile: StoredTile, name: string): Tensor {
    const { memory } = this.slotOf(tile) as Slot;
    const field = tile.fields.find((one) => one.name === name) as Field;
    return fieldIn(memory, field);
  }

  /** No later work of the stream touches the tile, whose bytes are others than before. */
  close(tile: StoredTile): void {
    const slot = this.slotOf(tile) as Slot;
    slot.users--;
    slot.changed = true;
  }

  /** Brings a tile's bytes to disk; others go on meanwhile. */
  store(tile: StoredTile): void {
    const slot = this.slotOf(tile);
    if (!slot?.changed) return;
    this.write(slot, tile);
    if (!this.options.writesBehind) this.file.wait(rangeOf(slot, tile), this.stream);
  }

  /** These tiles come next, in this order: as many as there are slots for are read. */
  expect(tiles: Iterable<StoredTile>): void {
    if (!this.options.readsAhead) return;
    let room = this.slots.length - 1;
    for (const tile of tiles) {
      if (room-- === 0) return;
      const slot = this.slotOf(tile);
      if (slot) slot.wanted = ++this.clock;
      else if (this.slots.some(({ users }) => users === 0)) {
        this.load(tile).wanted = ++this.clock;
      }
    }
  }

  dispose(): void {
    this.backing?.dispose();
    for (const { memory } of this.slots) memory.release();
  }

  /** Nothing takes the slot from the tile while it has users. */
  private occupy(slot: Slot, tile: StoredTile): void {
    slot.wanted = ++this.clock;
    this.file.wait(rangeOf(slot, tile), this.stream);
    slot.users++;
  }

  private lend(slot: Slot, tile: StoredTile, name: string, body: (field: Tensor) => void): void {
    this.occupy(slot, tile);
    const field = this.field(tile, name);
    try {
      body(field);
    } finally {
      field.release();
      slot.users--;
    }
  }

  private lendToChange(
    slot: Slot,
    tile: StoredTile,
    name: string,
    body: (field: Tensor) => void,
  ): void {
    this.lend(slot, tile, name, (field) => {
      slot.changed = true;
      body(field);
    });
  }

  private get file(): SwapFile {
    return this.backing as SwapFile;
  }

  private slotOf(tile: StoredTile): Slot | undefined {
    return this.slots.find((slot) => slot.tile === tile);
  }

  /** Gives the tile the slot that nobody has wanted for longest, and asks for its bytes. */
  private load(tile: StoredTile): Slot {
    const slot = this.takeOver(tile);
    if (this.stored.has(tile)) this.file.read(tile.offset, rangeOf(slot, tile), this.stream);
    else this.fill(slot, tile);
    return slot;
  }

  /** The slot that nobody has wanted for longest becomes the tile's, with whatever is there. */
  private takeOver(tile: StoredTile): Slot {
    const free = this.slots.filter(({ users }) => users === 0);
    const slot = free.reduce((oldest, one) => (one.wanted < oldest.wanted ? one : oldest));
    if (slot.tile && slot.changed) this.write(slot, slot.tile);
    slot.tile = tile;
    return slot;
  }

  private write(slot: Slot, tile: StoredTile): void {
    this.file.write(tile.offset, rangeOf(slot, tile), this.stream);
    this.stored.add(tile);
    slot.changed = false;
  }

  /** What a tile is before anything has been written to it. */
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
