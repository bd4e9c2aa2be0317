// Checks that the parts of a tensor contain each element exactly once, for ranges of any boxes.

import {
  type Box,
  type BoxRange,
  boxesOf,
  coordinatesIn,
  endOf,
  intersectBoxes,
  isSameBox,
  wholeBox,
} from '../runtime/box.js';
import { required } from '../runtime/required.js';
import { numel } from '../runtime/view.js';

/** An element of the tensor that no part contains, or two parts contain. */
interface Flaw {
  readonly kind: 'missing' | 'twice';
  readonly element: readonly number[];
}

/**
 * Returns null if the ranges contain each element of a tensor of `shape` exactly once, else a flaw.
 * The ranges must lie inside the tensor. Time for n parts: n log n if they form a grid or are
 * ranges of one box. It is n^2 if no straight cut divides them, which no model layout produces.
 */
export function findFlaw(shape: readonly number[], ranges: readonly BoxRange[]): Flaw | null {
  const tiles: Box[] = [];
  for (const group of groupByBox(ranges)) {
    const joined = joinAdjacent(group);
    if ('kind' in joined) return joined;
    for (const range of joined) tiles.push(...boxesOf(range));
  }
  return findTilingFlaw(wholeBox(shape), tiles);
}

function groupByBox(ranges: readonly BoxRange[]): Iterable<BoxRange[]> {
  const groups = new Map<string, BoxRange[]>();
  let last: BoxRange[] | undefined;
  for (const range of ranges) {
    if (range.numel === 0) continue;
    if (last?.[0]?.box === range.box) {
      last.push(range);
      continue;
    }
    const key = `${range.box.offset};${range.box.shape}`;
    last = groups.get(key) ?? [];
    last.push(range);
    groups.set(key, last);
  }
  return groups.values();
}

/** Joins adjacent ranges of one box, or returns an element that two ranges contain. */
function joinAdjacent(ranges: readonly BoxRange[]): BoxRange[] | Flaw {
  const [first, ...others] = [...ranges].sort((a, b) => a.from - b.from);
  if (!first) return [];
  const joined: BoxRange[] = [];
  const { box } = first;
  let from = first.from;
  let end = from + first.numel;
  for (const range of others) {
    if (range.from < end) return { kind: 'twice', element: coordinatesIn(box, range.from) };
    if (range.from > end) {
      joined.push({ box, from, numel: end - from });
      from = range.from;
    }
    end = range.from + range.numel;
  }
  joined.push({ box, from, numel: end - from });
  return joined;
}

interface Region {
  box: Box;
  /** The tiles that should fill the box. */
  tiles: readonly Box[];
}

function findTilingFlaw(whole: Box, tiles: readonly Box[]): Flaw | null {
  const open: Region[] = numel(whole.shape) > 0 ? [{ box: whole, tiles }] : [];
  for (let region = open.pop(); region; region = open.pop()) {
    const [first] = region.tiles;
    if (first && region.tiles.length === 1 && isSameBox(first, region.box)) continue;
    const parts = divide(region);
    if (Array.isArray(parts)) {
      for (const part of parts) open.push(part);
      continue;
    }
    const flaw = parts ?? findPairFlaw(region);
    if (flaw) return flaw;
  }
  return null;
}

/**
 * Divides a region along the first dimension with a cut that crosses no tile. Returns the parts; a
 * flaw if a gap is found; null if no cut exists.
 */
function divide(region: Region): Region[] | Flaw | null {
  for (let d = 0; d < region.box.shape.length; ++d) {
    const slabs = slabsOf(region, d);
    if (!Array.isArray(slabs) || slabs.length > 1) return slabs;
  }
  return null;
}

/**
 * Groups the tiles by position in dimension `d`, so that no tile belongs to two groups. Returns the
 * regions of the groups, or a flaw if there is a gap.
 */
function slabsOf({ box, tiles }: Region, d: number): Region[] | Flaw {
  const start = (tile: Box): number => required(tile.offset[d]);
  const moveNumbers = (numbers: readonly number[], n: number): number[] =>
    numbers.map((old, i) => (i === d ? n : old));
  const slabs: { from: number; to: number; tiles: Box[] }[] = [];
  let reached = start(box);
  for (const tile of [...tiles].sort((a, b) => start(a) - start(b))) {
    const from = start(tile);
    const to = endOf(tile, d);
    if (from > reached) break;
    const last = slabs.at(-1);
    if (!last || from === reached) {
      slabs.push({ from, to, tiles: [tile] });
    } else {
      last.tiles.push(tile);
      last.to = Math.max(last.to, to);
    }
    reached = Math.max(reached, to);
  }
  if (reached < endOf(box, d))
    return { kind: 'missing', element: moveNumbers(box.offset, reached) };
  return slabs.map(({ from, to, tiles: ownBoxes }) => ({
    box: { offset: moveNumbers(box.offset, from), shape: moveNumbers(box.shape, to - from) },
    tiles: ownBoxes,
  }));
}

/**
 * Checks a region that no straight cut divides: compares all pairs of tiles for an overlap, then
 * subtracts all tiles to find a gap.
 */
function findPairFlaw({ box, tiles }: Region): Flaw | null {
  const start = (tile: Box): number => tile.offset[0] ?? 0;
  const sorted = [...tiles].sort((a, b) => start(a) - start(b));
  for (const [i, tile] of sorted.entries()) {
    for (let j = i + 1; j < sorted.length; ++j) {
      const other = required(sorted[j]);
      if (start(other) >= endOf(tile, 0)) break;
      const both = intersectBoxes(tile, other);
      if (both) return { kind: 'twice', element: both.offset };
    }
  }
  let rest = [box];
  for (const tile of sorted) rest = rest.flatMap((box) => subtractBoxes(box, tile));
  return rest[0] ? { kind: 'missing', element: rest[0].offset } : null;
}

/** Returns boxes that together are `box` without `other`. */
function subtractBoxes(box: Box, other: Box): Box[] {
  const both = intersectBoxes(box, other);
  if (!both) return [box];
  const parts: Box[] = [];
  let rest = box;
  for (let d = 0; d < box.shape.length; ++d) {
    const { offset, shape } = rest;
    const slab = (from: number, to: number): Box => ({
      offset: offset.map((n, i) => (i === d ? from : n)),
      shape: shape.map((n, i) => (i === d ? to - from : n)),
    });
    const [from, to] = [required(both.offset[d]), endOf(both, d)];
    if (from > required(offset[d])) parts.push(slab(required(offset[d]), from));
    if (to < endOf(rest, d)) parts.push(slab(to, endOf(rest, d)));
    rest = slab(from, to);
  }
  return parts;
}
