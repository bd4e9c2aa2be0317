// The numbers of one step as a model and its cache read them: tokens side by side, where they
// stand, and which blocks are whose.
import type { Slice } from './scheduler.js';
import type { Sequence } from './sequence.js';

/** All that a forward is to know of a step, as numbers: ranks that share a model send it. */
export interface StepBatch {
  /** All lists, one after the other. */
  readonly numbers: Int32Array;
  /** Tokens of each sequence, those with one first. */
  readonly counts: readonly number[];
  /** How many have one token. */
  readonly singles: number;
  /** Tokens in all. */
  readonly tokens: number;
  /** Blocks in a row of the tables. */
  readonly width: number;
  /** How many next tokens follow. */
  readonly ends: number;
}

/** The lists of a batch in their order, and how long each is. */
export function listsOf({
  counts,
  tokens,
  width,
  ends,
}: Omit<StepBatch, 'numbers'>): Record<ListName, number> {
  const sequences = counts.length;
  return {
    ...{ tokens, positions: tokens, slots: tokens, ends },
    ...{ starts: sequences + 1, lengths: sequences, tables: sequences * width },
  };
}

/** A batch, and whose it is. */
export interface PlannedBatch {
  readonly batch: StepBatch;
  /** Those whose last token is among these, in the order of `ends`: their next token follows. */
  readonly ended: readonly Sequence[];
}

/**
 * tokens, positions and slots are of each token; `ends` are places of last tokens among them;
 * starts, lengths and tables are those of the op PagedAttention.
 */
export type ListName = 'tokens' | 'positions' | 'slots' | 'ends' | 'starts' | 'lengths' | 'tables';

/** The batch of `slices`, each of a sequence with blocks for what it computes. */
export function stepBatch(given: readonly Slice[], blockSize: number): PlannedBatch {
  const isSingle = ({ count }: Slice): boolean => count === 1;
  const singles = given.filter(isSingle);
  const slices = [...singles, ...given.filter((slice) => !isSingle(slice))];
  const tokens = slices.reduce((sum, { count }) => sum + count, 0);
  const blocksOf = ({ first, count }: Slice): number => Math.ceil((first + count) / blockSize);
  const width = Math.max(1, ...slices.map(blocksOf));
  const isEnd = ({ sequence, first, count }: Slice): boolean =>
    first + count === sequence.tokens.length;
  const ended = slices.filter(isEnd).map(({ sequence }) => sequence);
  const counts = slices.map(({ count }) => count);
  const sizesOf = { counts, singles: singles.length, tokens, width, ends: ended.length };
  const lengths = listsOf(sizesOf);
  const sizes = Object.values(lengths);
  const numbers = new Int32Array(sizes.reduce((sum, size) => sum + size, 0));
  let at = 0;
  const lists = Object.fromEntries(
    Object.entries(lengths).map(([name, size]) => {
      const list = numbers.subarray(at, at + size);
      at += size;
      return [name, list];
    }),
  ) as Record<ListName, Int32Array>;
  fill(lists, slices, { blockSize, width });
  return { batch: { ...sizesOf, numbers }, ended };
}

function fill(
  lists: Record<ListName, Int32Array>,
  slices: readonly Slice[],
  { blockSize, width }: { blockSize: number; width: number },
): void {
  let [row, end] = [0, 0];
  slices.forEach(({ sequence, first, count }, s) => {
    const { blocks, tokens } = sequence;
    for (let i = first; i < first + count; ++i, ++row) {
      lists.tokens[row] = tokens[i] as number;
      lists.positions[row] = i;
      lists.slots[row] =
        (blocks[Math.floor(i / blockSize)] as number) * blockSize + (i % blockSize);
    }
    if (first + count === tokens.length) lists.ends[end++] = row - 1;
    lists.starts[s + 1] = row;
    lists.lengths[s] = first + count;
    lists.tables.set(blocks.slice(0, width), s * width);
  });
}
