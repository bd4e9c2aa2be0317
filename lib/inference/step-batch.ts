// Builds the inputs of one step: packed tokens, positions and block tables.
import { required } from '../runtime/required.js';
import { keysOf } from '../runtime/typed-keys.js';
import { buildLists } from './adapters/rows.js';
import type { Slice } from './scheduler.js';
import type { Sequence } from './sequence.js';

/** Dimensions of a step. */
interface StepSizes {
  readonly tokens: number;
  readonly sequences: number;
  /** Number of sampled tokens: one per sequence with its last token, and one per proposal. */
  readonly ends: number;
  /** Row length of the block tables. */
  readonly width: number;
  /** Tiles of rows with one adapter; 0: no row has an adapter. */
  readonly tiles: number;
}

/** All inputs of a forward as numbers. Ranks that share a model send it to each other. */
export interface StepBatch extends StepSizes {
  /** All lists, concatenated. */
  readonly numbers: Int32Array;
  /** Number of sequences with one token, which come first. */
  readonly singles: number;
  /** Maximum number of tokens of a sequence. */
  readonly longest: number;
}

/** A batch and its sequences. */
interface PlannedBatch {
  readonly batch: StepBatch;
  /**
   * Sequences with their last token in the batch, in the order of `ends`. The tokens after it and
   * after each proposal are sampled.
   */
  readonly ended: readonly Sequence[];
}

/** Returns the length of each list of a batch, in order. */
export function listLengths(sizes: StepSizes): Record<ListName, number> {
  const { tokens, sequences, ends, width, tiles } = sizes;
  return {
    tokens,
    positions: tokens,
    slots: tokens,
    ends,
    starts: sequences + 1,
    lengths: sequences,
    tables: sequences * width,
    entries: tiles > 0 ? tokens : 0,
    tiles: 3 * tiles,
    states: sequences,
  };
}

/** Returns the total length of all lists. */
export function countWords(sizes: StepSizes): number {
  return Object.values(listLengths(sizes)).reduce((sum, size) => sum + size, 0);
}

/**
 * `tokens` (input of the op FeedTokens), `positions` and `slots` have one entry per token. `ends`
 * are the indices of last tokens and of proposals. `starts`, `lengths` and `tables` are inputs of
 * the op PagedAttention, `entries` and `tiles` of the op AdapterShrink. `states` are the slots of
 * recurrent states.
 */
export type ListName =
  | ('tokens' | 'positions' | 'slots' | 'ends' | 'starts' | 'lengths' | 'tables')
  | ('entries' | 'tiles' | 'states');

/**
 * Padded size of a recorded step: one token of each sequence, or the tokens of one sequence. A
 * padding row has one token without a slot, which attends to no other token. Block tables have
 * `width` columns.
 */
export interface Padding {
  /** Tokens. */
  readonly rows: number;
  readonly width: number;
  /** Tile capacity for adapters; 0 if no row has an adapter. */
  readonly tiles: number;
  /** Number of sampled tokens of a step with one sequence. */
  readonly ends?: number;
}

/** Format of a batch. */
interface BatchForm {
  /** Tokens in a block. */
  readonly blockSize: number;
  /** Null: one row per sequence. */
  readonly padding?: Padding | null;
  /** Memory for the numbers. Default: a new array. */
  readonly into?: Int32Array | null;
}

/** Builds the batch of `planned`. Each sequence must have blocks for its slice. */
export function buildBatch(planned: readonly Slice[], form: BatchForm): PlannedBatch {
  const { blockSize, padding = null, into = null } = form;
  const singles = planned.filter(({ count }) => count === 1);
  const slices =
    singles.length === planned.length
      ? planned
      : [...singles, ...planned.filter(({ count }) => count !== 1)];
  let [tokens, width, longest, ends] = [0, 1, 1, 0];
  const ended: Sequence[] = [];
  for (const { sequence, first, count } of slices) {
    tokens += count;
    width = Math.max(width, Math.ceil((first + count) / blockSize));
    longest = Math.max(longest, count);
    if (first + count < sequence.extent) continue;
    ended.push(sequence);
    ends += 1 + sequence.proposals.length;
  }
  const rows = adapterRows(slices, padding?.rows);
  const tiles = (rows?.tiles.length ?? 0) / 3;
  const sizes = padding
    ? paddedSizes(padding)
    : { tokens, sequences: slices.length, ends, width, tiles };
  const lengths = listLengths(sizes);
  const words = countWords(sizes);
  const numbers = into ? into.subarray(0, words) : new Int32Array(words);
  const lists = splitNumbers(numbers, lengths);
  const filled = fillLists(lists, slices, { blockSize, width: sizes.width });
  if (padding) fillPadding(lists, filled, sizes.sequences);
  if (sizes.tiles > 0) {
    lists.entries.fill(0).set(rows?.entries ?? []);
    lists.tiles.fill(0).set(rows?.tiles ?? []);
  }
  // Decode steps of several sequences have padding rows, which count as sequences with one token.
  const hasPaddingRows = padding !== null && padding.ends === undefined;
  const batch = {
    ...sizes,
    numbers,
    singles: hasPaddingRows ? padding.rows : singles.length,
    longest,
  };
  return { batch, ended };
}

const paddedSizes = ({ rows, width, tiles, ends }: Padding): StepSizes => ({
  tokens: rows,
  sequences: ends === undefined ? rows : 1,
  ends: ends ?? rows,
  width,
  tiles,
});

/**
 * Sorts the rows of slices, and padding up to `count`, by adapter. Returns null if no row has an
 * adapter.
 */
function adapterRows(
  slices: readonly Slice[],
  count?: number,
): ReturnType<typeof buildLists> | null {
  if (slices.every(({ sequence }) => sequence.adapter < 0)) return null;
  const slots = slices.flatMap(({ sequence, count }) => Array(count).fill(sequence.adapter));
  return buildLists(slots, count);
}

type Lists = Record<ListName, Int32Array>;

function splitNumbers(numbers: Int32Array, lengths: Record<ListName, number>): Lists {
  let at = 0;
  const lists = {} as Lists;
  for (const name of keysOf(lengths)) {
    lists[name] = numbers.subarray(at, at + lengths[name]);
    at += lengths[name];
  }
  return lists;
}

/** Fills the lists and returns the number of sequences. */
function fillLists(
  lists: Lists,
  slices: readonly Slice[],
  { blockSize, width }: { blockSize: number; width: number },
): number {
  let [row, end, s] = [0, 0, 0];
  lists.starts[0] = 0;
  for (const { sequence, first, count } of slices) {
    const { blocks } = sequence;
    for (let i = first; i < first + count; ++i, ++row) {
      lists.tokens[row] = sequence.inputToken(i);
      lists.positions[row] = i;
      lists.slots[row] = required(blocks[Math.floor(i / blockSize)]) * blockSize + (i % blockSize);
    }
    const isEnded = first + count === sequence.extent;
    const firstEnd = row - 1 - sequence.proposals.length;
    for (let at = isEnded ? firstEnd : row; at < row; ++at) lists.ends[end++] = at;
    lists.starts[s + 1] = row;
    lists.lengths[s] = first + count;
    lists.states[s] = sequence.state;
    const used = Math.min(width, blocks.length);
    for (let b = 0; b < used; ++b) lists.tables[s * width + b] = required(blocks[b]);
    s++;
  }
  return s;
}

/** Fills the padding rows `from` to `to`. */
function fillPadding(lists: Lists, from: number, to: number): void {
  const { tokens, positions, slots, ends, starts, lengths, states } = lists;
  for (let row = from; row < to; ++row) {
    tokens[row] = 0;
    positions[row] = 0;
    slots[row] = -1;
    ends[row] = row;
    starts[row + 1] = row + 1;
    lengths[row] = 0;
    states[row] = -1;
  }
}
