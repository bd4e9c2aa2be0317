// Who has what of a layer: how outputs, inputs, heads and rows are shared out between ranks.
import type { ProcessGroup } from '../comm/index.js';
import { DsError } from '../errors.js';
import type { Parameter } from '../nn/parameter.js';
import type { Box } from '../runtime/box.js';
import { shareOut, startOf } from './exchanges.js';

/** What one rank has of a dim. */
export interface Range {
  /** The first one. */
  readonly first: number;
  readonly count: number;
}

/** How a dim of a layer is shared out. */
export interface DimCut {
  /** Ranges of things of equal width (heads, channels, rows), by rank. */
  readonly ranges: readonly Range[];
  /** Things that there are in each part. */
  readonly pieces: number;
  /** Equal parts that lie side by side, each of them shared out: 3 for queries, keys and values. */
  readonly parts: number;
}

/** `count` things as even as can be, the first ranks with one more. Throws DS_ARGUMENT. */
export function rangesFor(
  what: string,
  count: number,
  group: ProcessGroup,
  op = 'parallelize',
): Range[] {
  if (count < group.size) throw tooFew(op, what, count, group.size);
  const sizes = shareOut(count, group.size);
  return sizes.map((size, rank) => ({ first: startOf(sizes, rank), count: size }));
}

function tooFew(op: string, what: string, count: number, ranks: number): DsError {
  return new DsError({
    code: 'DS_ARGUMENT',
    op,
    expected: `at most ${count} ranks, as there are ${count} ${what}`,
    got: String(ranks),
    hint: 'Share them between fewer ranks, and give the others samples of their own.',
  });
}

/** Keeps this rank's part of `parameter` along `dim`. Throws DS_SHAPE, DS_ARGUMENT. */
export function cutAlong(parameter: Parameter, dim: number, cut: DimCut, rank: number): void {
  const { pieces, parts, ranges } = cut;
  const whole = parameter.shape;
  const width = (whole[dim] as number) / (pieces * parts);
  const { first, count } = ranges[rank] as Range;
  const boxes = Array.from({ length: parts }, (_, part): Box => {
    const start = (part * pieces + first) * width;
    return {
      offset: whole.map((_size, d) => (d === dim ? start : 0)),
      shape: whole.map((size, d) => (d === dim ? count * width : size)),
    };
  });
  parameter.cutTo(boxes);
}

/** The widths that ranks have of a dim of `size`. */
export function widthsOf({ ranges, pieces, parts }: DimCut, size: number): number[] {
  return ranges.map(({ count }) => (count * parts * size) / (pieces * parts));
}

/** Where the parts of ranks begin and end along a dim of `size`, upwards, each place once. */
export function bordersOf({ ranges, pieces, parts }: DimCut, size: number): number[] {
  const width = size / (pieces * parts);
  const places = Array.from({ length: parts }, (_, part) =>
    ranges.flatMap(({ first, count }) => [first, first + count].map((at) => part * pieces + at)),
  );
  return [...new Set(places.flat())].sort((a, b) => a - b).map((at) => at * width);
}

/** How many heads an attention has. */
export interface HeadCounts {
  /** Heads of queries. */
  readonly queries: number;
  /** Heads of keys and values, of which each serves queries / keys of them. */
  readonly keys: number;
}

/** The heads of an attention by rank. */
export interface SharedHeads {
  readonly counts: HeadCounts;
  readonly queries: readonly Range[];
  /** Several ranks have the same head where there are fewer than ranks. */
  readonly keys: readonly Range[];
}

/**
 * Heads of keys with all queries that they serve, as even as can be; where there are fewer of them
 * than ranks, each is on several, which share its queries. Throws DS_ARGUMENT where a rank would
 * have none.
 */
export function shareHeads(
  counts: HeadCounts,
  group: ProcessGroup,
  op = 'parallelize',
): SharedHeads {
  const { queries, keys } = counts;
  const served = queries / keys;
  const ranks = group.size;
  if (keys >= ranks) {
    const shared = rangesFor('heads', keys, group, op);
    const own = shared.map(({ first, count }) => ({
      ...{ first: first * served, count: count * served },
    }));
    return { counts, queries: own, keys: shared };
  }
  const owners = shareOut(ranks, keys);
  if (Math.max(...owners) > served) throw tooFew(op, 'heads', queries, ranks);
  const pairs = owners.flatMap((count, head) => {
    const sizes = shareOut(served, count);
    return sizes.map((size, i) => ({
      key: { first: head, count: 1 },
      query: { first: head * served + startOf(sizes, i), count: size },
    }));
  });
  return { counts, queries: pairs.map((one) => one.query), keys: pairs.map((one) => one.key) };
}
