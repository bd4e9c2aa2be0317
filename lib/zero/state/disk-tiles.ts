// Plans the layout of optimizer state on disk: the bytes of each tile in the file and in a slot.
import type { Optimizer } from '../../optim/optimizer.js';
import type { Device } from '../../runtime/device.js';
import { type DType, dtypeSize } from '../../runtime/dtype.js';
import { SWAP_ALIGNMENT, type SwapFileOptions } from '../../runtime/swap-file.js';
import { alignUp, type GroupRange } from '../layout.js';
import type { Partition } from '../unit.js';
import { allocateFilled } from './pinned.js';
import { allocateTables, stateSizes } from './range-state.js';
import { createTileEvents, cutRange, type StateTile } from './tiles.js';

/** Alignment of tensors in a slot in bytes: more than a cache line. */
const FIELD_ALIGNMENT = 256;

/** The folder and label of a swap file, and the sizes of its requests. */
export type DiskAccess = Omit<SwapFileOptions, 'bytes' | 'purpose' | 'memory'>;

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
  /** Range in the partition. `groupRange` is the group's range that contains it. */
  readonly range: GroupRange;
  readonly groupRange: GroupRange;
}

/** A tile with its state on a disk: `state` is empty. */
export interface DiskTile extends StateTile, TilePlace {
  readonly range: GroupRange;
}

/** The tiles of each owner in a file. */
export interface DiskPlan<Owner, Tile extends StoredTile> {
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
