// Where optimizer state lies that is on disk: the bytes of each tile in a file, and in a slot of
// host memory.
import type { Optimizer } from '../../optim/optimizer.js';
import type { Device } from '../../runtime/device.js';
import { type DType, dtypeSize } from '../../runtime/dtype.js';
import { SWAP_ALIGNMENT } from '../../runtime/swap-file.js';
import type { Tensor } from '../../tensor/index.js';
import type { GroupRange } from '../layout.js';
import type { Partition } from '../partition.js';
import { pinnedFilled } from './pinned.js';
import { allocateTables, stateSizes } from './range-state.js';
import { cutRange, type HostTile, tileEvents } from './tiles.js';

/** Tensors begin at multiples of it in a slot: a cache line and more. */
const FIELD_ALIGNMENT = 256;

/** A flat tensor in a tile's bytes. */
export interface Field {
  /** "master", or a state's. */
  readonly name: string;
  readonly dtype: DType;
  /** Bytes from the start of the tile's. */
  readonly offset: number;
  readonly numel: number;
  /** What each element is before the first update. */
  readonly initial: number;
}

/** Tensors that come from a file and go there at once. */
export interface StoredTile {
  readonly fields: readonly Field[];
  /** Bytes in the file before it, a multiple of the block. */
  readonly offset: number;
  /** A multiple of what transfers are aligned to. */
  readonly bytes: number;
}

/** What updates of a tile read and write. */
export interface TilePlace extends StoredTile {
  /** Of its partition; `whole` is the group's range that it is a part of. */
  readonly range: GroupRange;
  readonly whole: GroupRange;
}

/** A tile whose state comes into memory for an update. */
export interface DiskTile extends HostTile, TilePlace {
  readonly sums: readonly Tensor[];
  readonly starts: Tensor;
}

/** The tiles of partitions in a file. */
export interface DiskPlan {
  readonly places: ReadonlyMap<Partition, readonly TilePlace[]>;
  readonly bytes: number;
  /** Of the largest tile. */
  readonly slotBytes: number;
  /** Elements that are updated. */
  readonly numel: number;
}

/**
 * Cuts `partitions` into tiles of at most `tile` elements, and gives each a place that starts with
 * a block.
 */
export function planTiles(
  partitions: readonly Partition[],
  optimizer: Optimizer,
  { tile, blockBytes }: { tile: number; blockBytes: number },
): DiskPlan {
  const places = new Map<Partition, TilePlace[]>();
  let [bytes, slotBytes, numel] = [0, 0, 0];
  for (const partition of partitions) {
    const own: TilePlace[] = [];
    for (const whole of partition.groups) {
      for (const range of cutRange(whole, optimizer, tile)) {
        const place = { range, whole, offset: bytes, ...fieldsOf(range, optimizer) };
        own.push(place);
        bytes = alignUp(bytes + place.bytes, blockBytes);
        slotBytes = Math.max(slotBytes, place.bytes);
      }
    }
    places.set(partition, own);
    numel += partition.numel;
  }
  return { places, bytes, slotBytes, numel };
}

function fieldsOf(
  range: GroupRange,
  optimizer: Optimizer,
): { fields: readonly Field[]; bytes: number } {
  const master = { name: 'master', dtype: 'f32', numel: range.numel, initial: 0 } as const;
  let end = 0;
  const fields = [master, ...stateSizes(range, optimizer)].map((size) => {
    const field = { ...size, offset: end };
    end = alignUp(end + size.numel * dtypeSize(size.dtype), FIELD_ALIGNMENT);
    return field;
  });
  return { fields, bytes: alignUp(end, SWAP_ALIGNMENT) };
}

/** A tile at its place; disposeDiskTile() releases what it has. */
export function makeDiskTile(place: TilePlace, optimizer: Optimizer, device: Device): DiskTile {
  const allocate = pinnedFilled.bind(null, device);
  return { ...place, ...allocateTables(place.range, optimizer, allocate), ...tileEvents(device) };
}

export function disposeDiskTile({ sums, starts, arrived, updated }: DiskTile): void {
  for (const tensor of [...sums, starts]) tensor.release();
  for (const event of [arrived, updated]) event.dispose();
}

/** `bytes`, made a multiple of `unit`. */
export const alignUp = (bytes: number, unit: number): number => Math.ceil(bytes / unit) * unit;
