// The rows of a step sorted by adapter, in tiles: inputs of the op AdapterShrink.

import { required } from '../../runtime/required.js';

/** Entries of a tile: see csrc/ops/adapter_rows.h. */
const TILE = 16;

/** Returns the largest number of tiles for `rows` rows with up to `adapters` adapters. */
export const maxTiles = (rows: number, adapters: number): number =>
  adapters === 0 ? 0 : Math.floor(rows / TILE) + Math.min(rows, adapters);

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

/** Sorts rows by their adapter's slot; -1 is none. */
export function listOf(slots: ArrayLike<number>): { entries: number[]; tiles: number[] } {
  const rows = new Map<number, number[]>();
  for (let row = 0; row < slots.length; ++row) {
    const slot = required(slots[row]);
    if (slot < 0) continue;
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
