// The layout of optimizer state on disk: bytes of each tile in a file and in a slot of host memory.
import type { Optimizer } from '../../optim/optimizer.js';
import type { Device } from '../../runtime/device.js';
import { type DType, dtypeSize } from '../../runtime/dtype.js';
import { SWAP_ALIGNMENT } from '../../runtime/swap-file.js';
import { alignUp, type GroupRange } from '../layout.js';
import type { Partition } from '../shard.js';
import { pinnedFilled } from './pinned.js';
import { allocateTables, stateSizes } from './range-state.js';
import { cutRange, type StateTile, tileEvents } from './tiles.js';

/** Alignment of tensors in a slot in bytes: more than a cache line. */
const FIELD_ALIGNMENT = 256;

export interface Field {
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
  /** Range in the partition. `whole` is the group's range that contains it. */
  readonly range: GroupRange;
  readonly whole: GroupRange;
}

/** A tile with its state on a disk: `state` is empty. */
export interface DiskTile extends StateTile, TilePlace {
  readonly range: GroupRange;
}

/** The tiles of partitions in a file. */
export interface DiskPlan {
  readonly places: ReadonlyMap<Partition, readonly TilePlace[]>;
  readonly bytes: number;
  /** Bytes of the largest tile. */
  readonly slotBytes: number;
  readonly numel: number;
}

/** Divides `partitions` into tiles of at most `tile` elements, each at a block of the file. */
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

/** Creates a tile. disposeTile() releases it. */
export function makeDiskTile(place: TilePlace, optimizer: Optimizer, device: Device): DiskTile {
  const allocate = pinnedFilled.bind(null, device);
  const tables = allocateTables(place.range, optimizer, allocate);
  return { ...place, ...tables, state: {}, ...tileEvents(device) };
}
