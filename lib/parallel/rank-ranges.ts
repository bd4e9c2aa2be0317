// Division of a layer's outputs, inputs, heads and rows over ranks.

import type { ProcessGroup } from '../comm/index.js';
import { DsError } from '../errors.js';
import type { Parameter } from '../nn/parameter.js';
import type { Box } from '../runtime/box.js';
import { required } from '../runtime/required.js';
import { splitEvenly, startOf } from './exchanges.js';

/** A rank's range of a dim. */
export interface Range {
  /** The first one. */
  readonly first: number;
  readonly count: number;
}

/** How one part of a dim is divided over the ranks. */
export interface PartCut {
  /** Ranges of elements of equal width (heads, channels, rows), by rank. */
  readonly ranges: readonly Range[];
  /** Number of these elements over all ranks. */
  readonly pieces: number;
}

/**
 * The split of a dim: concatenated parts, each with a number of elements of equal width. Packed
 * queries, keys and values are three parts.
 */
export type DimCut = readonly PartCut[];

/** Returns the width of an element in a dim of `size`. */
const elementWidth = (cut: DimCut, size: number): number =>
  size / cut.reduce((sum, { pieces }) => sum + pieces, 0);

/** Returns the ranges of `rank` in a dim of `size`: one per part, in memory order. */
export function rangesIn(cut: DimCut, size: number, rank: number): Range[] {
  const width = elementWidth(cut, size);
  let start = 0;
  return cut.map(({ ranges, pieces }) => {
    const { first, count } = required(ranges[rank]);
    const range = { first: (start + first) * width, count: count * width };
    start += pieces;
    return range;
  });
}

/**
 * Splits `count` elements as evenly as possible, the first ranks with one more. Throws DS_ARGUMENT
 * if there are fewer elements than ranks.
 */
export function rangesFor(
  what: string,
  count: number,
  group: ProcessGroup,
  op = 'parallelize',
): Range[] {
  if (count < group.size) throw tooFewError(op, what, count, group.size);
  const sizes = splitEvenly(count, group.size);
  return sizes.map((size, rank) => ({ first: startOf(sizes, rank), count: size }));
}

function tooFewError(op: string, what: string, count: number, ranks: number): DsError {
  return new DsError({
    code: 'DS_ARGUMENT',
    op,
    expected: `at most ${count} ranks for ${count} ${what}`,
    got: String(ranks),
    hint: 'Use fewer ranks here, and the remaining ranks for data parallelism.',
  });
}

/** Keeps this rank's part of `parameter` along `dim`. Throws DS_SHAPE, DS_ARGUMENT. */
export function cutAlong(parameter: Parameter, dim: number, cut: DimCut, rank: number): void {
  const wholeShape = parameter.shape;
  const boxes = rangesIn(cut, required(wholeShape[dim]), rank).map(
    ({ first, count }): Box => ({
      offset: wholeShape.map((_size, d) => (d === dim ? first : 0)),
      shape: wholeShape.map((size, d) => (d === dim ? count : size)),
    }),
  );
  parameter.cutTo(boxes);
}

/** Returns the widths of the ranks' parts of a dim of `size`. */
export function widthsOf(cut: DimCut, size: number): number[] {
  return ranksOf(cut).map((rank) =>
    rangesIn(cut, size, rank).reduce((sum, { count }) => sum + count, 0),
  );
}

/** Returns the unique borders, ascending, of the ranks' parts along a dim of `size`. */
export function bordersOf(cut: DimCut, size: number): number[] {
  const borders = ranksOf(cut).flatMap((rank) =>
    rangesIn(cut, size, rank).flatMap(({ first, count }) => [first, first + count]),
  );
  return [...new Set(borders)].sort((a, b) => a - b);
}

const ranksOf = ([part]: DimCut): number[] => (part?.ranges ?? []).map((_, rank) => rank);

/** How many heads an attention has. */
export interface HeadCounts {
  /** Heads of queries. */
  readonly queries: number;
  /** Key and value heads; each serves queries / keys query heads. */
  readonly keys: number;
}

/** The heads of an attention by rank. */
export interface SharedHeads {
  readonly counts: HeadCounts;
  readonly queries: readonly Range[];
  /** Several ranks have the same head if there are fewer heads than ranks. */
  readonly keys: readonly Range[];
}

/**
 * Distributes key heads with all their query heads as evenly as possible. If there are fewer key
 * heads than ranks, several ranks share one and split its query heads. Throws DS_ARGUMENT if a rank
 * would get no head.
 */
export function splitHeads(
  counts: HeadCounts,
  group: ProcessGroup,
  op = 'parallelize',
): SharedHeads {
  const { queries, keys } = counts;
  const served = queries / keys;
  const ranks = group.size;
  if (keys >= ranks) {
    const shared = rangesFor('heads', keys, group, op);
    const ownHeads = shared.map(({ first, count }) => ({
      first: first * served,
      count: count * served,
    }));
    return { counts, queries: ownHeads, keys: shared };
  }
  const owners = splitEvenly(ranks, keys);
  if (Math.max(...owners) > served) throw tooFewError(op, 'heads', queries, ranks);
  const pairs = owners.flatMap((count, head) => {
    const sizes = splitEvenly(served, count);
    return sizes.map((size, i) => ({
      key: { first: head, count: 1 },
      query: { first: head * served + startOf(sizes, i), count: size },
    }));
  });
  return { counts, queries: pairs.map((pair) => pair.query), keys: pairs.map((pair) => pair.key) };
}
