// Sorts the rows of a step by adapter into tiles, the inputs of the op AdapterShrink.

/** Rows of a tile (csrc/ops/adapter_rows.h). */
const TILE = 16;

/**
 * Up to this many rows, memory bandwidth limits a step. Its products then include the A of all
 * adapters.
 */
export const WIDE_ROWS = 256;

/** Returns the number of tiles of rows without an adapter; the op AdapterSum computes them too. */
const tilesWithoutAdapter = (rows: number): number => Math.ceil(rows / TILE);

/** Returns the largest number of tiles for `rows` rows with up to `adapters` adapters. */
export const maxTiles = (rows: number, adapters: number): number =>
  adapters === 0
    ? 0
    : Math.floor(rows / TILE) +
      Math.min(rows, adapters) +
      tilesWithoutAdapter(Math.min(rows, WIDE_ROWS));

/**
 * Returns the number of tiles for which a step with `rows` rows is recorded. Rows with adapters get
 * a power of two, so that few steps are recorded; other rows get exactly what they need, because
 * empty tiles cost time.
 */
export function tileCapacity(slots: readonly number[], rows: number, adapters: number): number {
  const adapterTiles = countTiles(slots);
  if (adapterTiles === 0) return 0;
  const isWhole = slots.length === rows && slots.every((slot) => slot >= 0);
  const others = isWhole || rows > WIDE_ROWS ? 0 : tilesWithoutAdapter(rows);
  return Math.min(2 ** Math.ceil(Math.log2(adapterTiles)) + others, maxTiles(rows, adapters));
}

/** Returns the number of tiles of the rows with an adapter. Slot -1: no adapter. */
function countTiles(slots: Iterable<number>): number {
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
 * Sorts rows by slot. Slot -1: no adapter. Up to WIDE_ROWS rows, the lists include rows without an
 * adapter. Rows from slots.length to `count` have none.
 */
export function buildLists(
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
