// The numbers of one step as a model and its cache read them: tokens side by side, where they
// stand, and which blocks are whose.
import type { Slice } from './scheduler.js';
import type { Sequence } from './sequence.js';

/** How many of what a step has. */
export interface StepSizes {
  readonly tokens: number;
  readonly sequences: number;
  /** Sequences whose next token follows. */
  readonly ends: number;
  /** Blocks in a row of the tables. */
  readonly width: number;
}

/** All that a forward is to know of a step, as numbers: ranks that share a model send it. */
export interface StepBatch extends StepSizes {
  /** All lists, one after the other. */
  readonly numbers: Int32Array;
  /** How many sequences have one token; they come first. */
  readonly singles: number;
  /** The most tokens of a sequence. */
  readonly longest: number;
}

/** A batch, and whose it is. */
export interface PlannedBatch {
  readonly batch: StepBatch;
  /** Those whose last token is among these, in the order of `ends`: their next token follows. */
  readonly ended: readonly Sequence[];
}

/** The lists of a batch in their order, and how long each is. */
export function listsOf({ tokens, sequences, ends, width }: StepSizes): Record<ListName, number> {
  return {
    ...{ tokens, positions: tokens, slots: tokens, ends },
    ...{ starts: sequences + 1, lengths: sequences, tables: sequences * width },
  };
}

/** The length of all lists. */
export function wordsOf(sizes: StepSizes): number {
  return Object.values(listsOf(sizes)).reduce((sum, size) => sum + size, 0);
}

/**
 * tokens (as the op FeedTokens takes them), positions and slots are of each token; `ends` are
 * places of last tokens among them; starts, lengths and tables are those of the op PagedAttention.
 */
export type ListName = 'tokens' | 'positions' | 'slots' | 'ends' | 'starts' | 'lengths' | 'tables';

/**
 * What a step of single tokens is made to look like: so many sequences, of which those that are
 * none have a token without a slot that sees no other, and tables so wide.
 */
export interface Padding {
  readonly rows: number;
  readonly width: number;
}

/** How a batch is written. */
export interface BatchForm {
  /** Tokens in a block. */
  readonly blockSize: number;
  /** Null: as many rows as there are sequences. */
  readonly padding?: Padding | null;
  /** Memory for the numbers; default: as much as they take. */
  readonly into?: Int32Array | null;
}

/** The batch of `slices`, each of a sequence with blocks for what it computes. */
export function stepBatch(given: readonly Slice[], form: BatchForm): PlannedBatch {
  const { blockSize, padding = null, into = null } = form;
  const singles = given.filter(({ count }) => count === 1);
  const slices =
    singles.length === given.length
      ? given
      : [...singles, ...given.filter(({ count }) => count !== 1)];
  let [tokens, width, longest] = [0, 1, 1];
  const ended: Sequence[] = [];
  for (const { sequence, first, count } of slices) {
    tokens += count;
    width = Math.max(width, Math.ceil((first + count) / blockSize));
    longest = Math.max(longest, count);
    if (first + count === sequence.length) ended.push(sequence);
  }
  const sizes = padding
    ? { tokens: padding.rows, sequences: padding.rows, ends: padding.rows, width: padding.width }
    : { tokens, sequences: slices.length, ends: ended.length, width };
  const lengths = listsOf(sizes);
  const words = wordsOf(sizes);
  const numbers = into ? into.subarray(0, words) : new Int32Array(words);
  const lists = cut(numbers, lengths);
  const filled = fill(lists, slices, { blockSize, width: sizes.width });
  if (padding) pad(lists, filled, padding.rows);
  const batch = { ...sizes, numbers, singles: padding?.rows ?? singles.length, longest };
  return { batch, ended };
}

type Lists = Record<ListName, Int32Array>;

function cut(numbers: Int32Array, lengths: Record<ListName, number>): Lists {
  let at = 0;
  const lists = {} as Lists;
  for (const name of Object.keys(lengths) as ListName[]) {
    lists[name] = numbers.subarray(at, at + lengths[name]);
    at += lengths[name];
  }
  return lists;
}

/** Returns the number of sequences. */
function fill(
  lists: Lists,
  slices: readonly Slice[],
  { blockSize, width }: { blockSize: number; width: number },
): number {
  let [row, end, s] = [0, 0, 0];
  lists.starts[0] = 0;
  for (const { sequence, first, count } of slices) {
    const { blocks } = sequence;
    for (let i = first; i < first + count; ++i, ++row) {
      lists.tokens[row] = sequence.fed(i);
      lists.positions[row] = i;
      lists.slots[row] =
        (blocks[Math.floor(i / blockSize)] as number) * blockSize + (i % blockSize);
    }
    if (first + count === sequence.length) lists.ends[end++] = row - 1;
    lists.starts[s + 1] = row;
    lists.lengths[s] = first + count;
    const used = Math.min(width, blocks.length);
    for (let b = 0; b < used; ++b) lists.tables[s * width + b] = blocks[b] as number;
    s++;
  }
  return s;
}

/** Rows from `from` on are of no sequence. */
function pad({ tokens, positions, slots, ends, starts, lengths }: Lists, from: number, to: number) {
  for (let row = from; row < to; ++row) {
    tokens[row] = 0;
    positions[row] = 0;
    slots[row] = -1;
    ends[row] = row;
    starts[row + 1] = row + 1;
    lengths[row] = 0;
  }
}
