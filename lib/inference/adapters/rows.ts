// The rows of a step sorted by adapter, in tiles: inputs of the op AdapterShrink.

/** Entries of a tile: see csrc/ops/adapter_rows.h. */
const TILE = 16;

/** Steps with at most this many rows are limited by memory: products include all factors A. */
export const WIDE_ROWS = 256;

/** Tiles of rows without an adapter: the op AdapterSum computes them too. */
const tilesOfNone = (rows: number): number => Math.ceil(rows / TILE);

/** Returns the largest number of tiles for `rows` rows with up to `adapters` adapters. */
export const maxTiles = (rows: number, adapters: number): number =>
  adapters === 0
    ? 0
    : Math.floor(rows / TILE) + Math.min(rows, adapters) + tilesOfNone(Math.min(rows, WIDE_ROWS));

/**
 * Returns the room for tiles of a recorded step of `rows` rows: a power of two for rows with
 * adapters, and room for the others. Empty tiles take time.
 */
export function roomForTiles(slots: readonly number[], rows: number, adapters: number): number {
  const own = tilesOf(slots);
  if (own === 0) return 0;
  const isWhole = slots.length === rows && slots.every((slot) => slot >= 0);
  const others = isWhole || rows > WIDE_ROWS ? 0 : tilesOfNone(rows);
  return Math.min(2 ** Math.ceil(Math.log2(own)) + others, maxTiles(rows, adapters));
}

/** Returns the number of tiles of rows with these slots; -1 is none. */
export function tilesOf(slots: Iterable<number>): number {
  const rows = new Map<number, number>();
  let tiles = 0;
  for (const slot of slots) {
    if (slot < 0) continue;
    const count = rows.get(slot) ?? 0;
    if (count % TILE === 0) tiles++;
    rows.set(slot, count + 1);
  }
  return tiles;
}

/**
 * Sorts rows by their adapter's slot; -1 is none. Rows without an adapter are in the lists up to
 * WIDE_ROWS rows, and rows from slots.length to `count` are without one.
 */
export function listOf(
  slots: ArrayLike<number>,
  count = slots.length,
): { entries: number[]; tiles: number[] } {
  const rows = new Map<number, number[]>();
  const isWide = count <= WIDE_ROWS;
  for (let row = 0; row < (isWide ? count : slots.length); ++row) {
    const slot = slots[row] ?? -1;
    if (slot < 0 && !isWide) continue;
    const list = rows.get(slot);
    if (list) list.push(row);
    else rows.set(slot, [row]);
  }
  const [entries, tiles]: [number[], number[]] = [[], []];
  for (const [slot, own] of [...rows].sort(([value], [other]) => value - other)) {
    for (let at = 0; at < own.length; at += TILE) {
      tiles.push(slot, entries.length + at, Math.min(TILE, own.length - at));
    }
    entries.push(...own);
  }
  return { entries, tiles };
}
