// Computes how outputs, inputs, heads and rows of a layer are distributed over ranks.

import type { ProcessGroup } from '../comm/index.js';
import { DsError } from '../errors.js';
import type { Parameter } from '../nn/parameter.js';
import type { Box } from '../runtime/box.js';
import { required } from '../runtime/required.js';
import { splitEvenly, startOf } from './exchanges.js';

/** A range of elements along a dim. */
export interface Range {
  /** Index of the first element. */
  readonly first: number;
  readonly count: number;
}

/**
 * How a part of a dim is split over the ranks. A part consists of pieces of equal width, such as
 * heads, channels or rows.
 */
export interface PartCut {
  /** Range of pieces of each rank, by rank. */
  readonly ranges: readonly Range[];
  /** Number of pieces of all ranks. */
  readonly pieces: number;
}

/**
 * How a dim is split: its concatenated parts are split separately. Concatenated queries, keys and
 * values are three parts.
 */
export type DimCut = readonly PartCut[];

/** Returns the width of a piece in a dim of `size`. */
const elementWidth = (cut: DimCut, size: number): number =>
  size / cut.reduce((sum, { pieces }) => sum + pieces, 0);

/** Returns the elements of `rank` in a dim of `size`: one range per part, in memory order. */
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
 * Splits `count` elements as evenly as possible; the first ranks may have one more. `what` names
 * the elements in errors. Throws DS_ARGUMENT if there are fewer elements than ranks.
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

/** Reduces `parameter` to this rank's part along `dim`. Throws DS_SHAPE, DS_ARGUMENT. */
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

/** Returns the number of elements of each rank in a dim of `size`. */
export function widthsOf(cut: DimCut, size: number): number[] {
  return ranksOf(cut).map((rank) =>
    rangesIn(cut, size, rank).reduce((sum, { count }) => sum + count, 0),
  );
}

/**
 * Returns the borders of the ranks' ranges in a dim of `size`, ascending and without duplicates.
 */
export function bordersOf(cut: DimCut, size: number): number[] {
  const borders = ranksOf(cut).flatMap((rank) =>
    rangesIn(cut, size, rank).flatMap(({ first, count }) => [first, first + count]),
  );
  return [...new Set(borders)].sort((a, b) => a - b);
}

const ranksOf = ([part]: DimCut): number[] => (part?.ranges ?? []).map((_, rank) => rank);

/** Numbers of heads of an attention. */
export interface HeadCounts {
  /** Number of query heads. */
  readonly queries: number;
  /** Number of key heads, and of value heads. Each serves queries / keys query heads. */
  readonly keys: number;
}

/** The heads of each rank, by rank. */
export interface SharedHeads {
  readonly counts: HeadCounts;
  readonly queries: readonly Range[];
  /** If there are fewer key heads than ranks, several ranks have the same head. */
  readonly keys: readonly Range[];
}

/**
 * Distributes key heads, each with all its query heads, as evenly as possible. If there are fewer
 * key heads than ranks, several ranks have the same key head and split its query heads. Throws
 * DS_ARGUMENT if a rank would get no query head.
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
