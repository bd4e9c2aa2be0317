// The numbers of one step as a model and its cache read them: tokens side by side, where they
// stand, and which blocks are whose.
import type { Slice } from './scheduler.js';
import type { Sequence } from './sequence.js';

/** Places of the lists in `numbers`, all i32. */
export interface StepBatch {
  /** All lists, one after the other. */
  readonly numbers: Int32Array;
  /** The sequences, those with one token first. */
  readonly slices: readonly Slice[];
  /** How many have one token. */
  readonly singles: number;
  /** Tokens in all. */
  readonly tokens: number;
  /** Blocks in a row of the tables. */
  readonly width: number;
  /** Those whose last token is among these, in the order of `ends`: their next token follows. */
  readonly ended: readonly Sequence[];
}

/** The lists of a batch in their order, and how long each is. */
export function listsOf({ slices, tokens, width, ended }: StepBatch): Record<ListName, number> {
  return {
    ...{ tokens, positions: tokens, slots: tokens, ends: ended.length },
    ...{ starts: slices.length + 1, lengths: slices.length, tables: slices.length * width },
  };
}

/**
 * tokens, positions and slots are of each token; `ends` are places of last tokens among them;
 * starts, lengths and tables are those of the op PagedAttention.
 */
export type ListName = 'tokens' | 'positions' | 'slots' | 'ends' | 'starts' | 'lengths' | 'tables';

/** The batch of `slices`, each of a sequence with blocks for what it computes. */
export function stepBatch(given: readonly Slice[], blockSize: number): StepBatch {
  const isSingle = ({ count }: Slice): boolean => count === 1;
  const singles = given.filter(isSingle);
  const slices = [...singles, ...given.filter((slice) => !isSingle(slice))];
  const tokens = slices.reduce((sum, { count }) => sum + count, 0);
  const blocksOf = ({ first, count }: Slice): number => Math.ceil((first + count) / blockSize);
  const width = Math.max(1, ...slices.map(blocksOf));
  const isEnd = ({ sequence, first, count }: Slice): boolean =>
    first + count === sequence.tokens.length;
  const ended = slices.filter(isEnd).map(({ sequence }) => sequence);
  const batch = { slices, singles: singles.length, tokens, width, ended };
  const lengths = listsOf({ ...batch, numbers: new Int32Array() });
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
  return { ...batch, numbers };
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
