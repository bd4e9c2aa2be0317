// DeepSpeed's patterns of sparse attention as pure functions: the blocks of keys that each block of
// queries sees. Source: deepspeed.ops.sparse_attention.sparsity_config.

import { DsError } from '../errors.js';
import { valueError } from '../runtime/input-errors.js';
import { namesOf, readOptions } from '../runtime/options.js';
import { requireInteger } from '../runtime/require-number.js';
import { requireOneOf } from '../runtime/require-type.js';
import { required } from '../runtime/required.js';
import { keysOf } from '../runtime/typed-keys.js';
import type { BlockLayoutSizes, SeeBlocks } from '../tensor/index.js';
import { requireBlock } from '../tensor/ops/require-block.js';

/** The keys that queries see, by blocks of tokens. Accepts DeepSpeed's names, also in camelCase. */
export interface SparsityOptions {
  /** The pattern. Default: "fixed". */
  mode?: 'dense' | 'fixed' | 'variable' | 'bigbird' | 'bslongformer' | 'local_sliding_window';
  /** Tokens per block: a power of two, at least 16. Default: 16. */
  block?: number;
  /** Whether heads have different layouts; otherwise all use the first head's. Default: false. */
  differentLayoutPerHead?: boolean;
  /** Blocks of a local window ("fixed"). Default: 4. */
  numLocalBlocks?: number;
  /** Global blocks per window ("fixed"), or first global blocks ("bigbird"). Default: 1. */
  numGlobalBlocks?: number;
  /**
   * Whether blocks see later blocks. Default: "bidirectional"; "unidirectional" for
   * "local_sliding_window". The block of a query is visible as a whole: the attention applies
   * causality by tokens.
   */
  attention?: (typeof DIRECTIONS)[number];
  /** Whether global blocks see all blocks ("fixed", "variable"; bidirectional). Default: false. */
  horizontalGlobalAttention?: boolean;
  /**
   * Number of choices of global blocks that heads alternate between ("fixed", with a layout per
   * head). Default: 1.
   */
  numDifferentGlobalPatterns?: number;
  /** Random blocks that each block sees ("variable", "bigbird"). Default: 0. */
  numRandomBlocks?: number;
  /** Blocks of each local window; the last size repeats ("variable"). Default: [4]. */
  localWindowBlocks?: readonly number[];
  /** Global blocks, or starts of ranges of them ("variable", "bslongformer"). Default: [0]. */
  globalBlockIndices?: readonly number[];
  /** Ends of the ranges; null: each range is one block. Default: null. */
  globalBlockEndIndices?: readonly number[] | null;
  /**
   * Blocks of the sliding window around each block ("bigbird", "bslongformer",
   * "local_sliding_window"). Default: 3.
   */
  numSlidingWindowBlocks?: number;
  /** Seed of random blocks, in addition to head and block. Default: 0. */
  seed?: number;
  /**
   * Number of tokens of the cached pattern: layouts of shorter sequences are cut from it, layouts
   * of longer sequences are built for their length. DeepSpeed's max_seq_length. Default: 2048.
   */
  maxTokens?: number;
}

/** All options with their defaults. */
export type Sparsity = Readonly<Required<SparsityOptions>>;

const OP = 'sparse attention';

/** A row of a pattern over n blocks, and the function that receives the blocks that it sees. */
interface PatternRow {
  readonly head: number;
  readonly row: number;
  readonly n: number;
  readonly see: SeeBlocks;
}

/** The blocks that a pattern lets a row see, and the smallest number of blocks of a sequence. */
interface Pattern {
  see(sparsity: Sparsity, of: PatternRow): void;
  min?(sparsity: Sparsity): number;
}

const isUnidirectional = ({ attention }: Sparsity): boolean => attention === 'unidirectional';

/** Lets a row see the blocks [from, to); blocks after the row only with bidirectional attention. */
function seeWindow(sparsity: Sparsity, { row, see }: PatternRow, from: number, to: number): void {
  see(from, isUnidirectional(sparsity) ? Math.min(to, row + 1) : to);
}

function seeSlidingWindow(sparsity: Sparsity, of: PatternRow): void {
  const reach = Math.floor(sparsity.numSlidingWindowBlocks / 2);
  seeWindow(sparsity, of, of.row - reach, of.row + reach + 1);
}

/** Returns the ranges of global blocks. */
function globalRanges({ globalBlockIndices: starts, globalBlockEndIndices: ends }: Sparsity) {
  return starts.map((start, i) => [start, ends?.[i] ?? start + 1] as const);
}

/**
 * Returns the positions of global blocks of "fixed" for `head`; the last, short window has them at
 * its end.
 */
function fixedGlobals(sparsity: Sparsity, head: number, n: number): (readonly [number, number])[] {
  const { numLocalBlocks: local, numGlobalBlocks: count } = sparsity;
  const pattern = 1 + (head % sparsity.numDifferentGlobalPatterns);
  const first = local - pattern * count;
  const full = n - (n % local);
  const starts: number[] = [];
  for (let start = first; start < full; start += local) starts.push(start);
  if (full < n && n >= count) starts.push(Math.min(full + first, n - count));
  return starts.map((start) => [start, start + count]);
}

/**
 * Lets all rows see the columns `ranges` (with unidirectional attention only rows at or after
 * them). Rows in `ranges` may see all columns.
 */
function seeGlobals(
  sparsity: Sparsity,
  { row, n, see }: PatternRow,
  ranges: readonly (readonly [number, number])[],
): void {
  for (const [start, end] of ranges) {
    if (start >= n) continue;
    if (sparsity.horizontalGlobalAttention && row >= start && row < end) see(0, n);
    if (!isUnidirectional(sparsity) || row >= start) see(start, end);
  }
}

/**
 * Returns a generator of uniform numbers of [0, 1) for one row. Source: Steele et al. 2014
 * (SplitMix).
 */
function createRandom(seed: number, head: number, row: number): () => number {
  let state = (Math.imul(seed + 1, 0x9e3779b1) ^ Math.imul(head + 1, 0x85ebca6b)) >>> 0;
  state = (state ^ Math.imul(row + 1, 0xc2b2ae35)) >>> 0;
  return () => {
    state = (state + 0x9e3779b9) >>> 0;
    let mixed = Math.imul(state ^ (state >>> 16), 0x85ebca6b);
    mixed = Math.imul(mixed ^ (mixed >>> 13), 0xc2b2ae35);
    return ((mixed ^ (mixed >>> 16)) >>> 0) / 2 ** 32;
  };
}

/**
 * Lets a row see numRandomBlocks different random blocks of the first `among` blocks, or all of
 * these. Source: Floyd's sampling.
 */
function seeRandom({ seed, numRandomBlocks }: Sparsity, of: PatternRow, among: number): void {
  const next = createRandom(seed, of.head, of.row);
  const count = Math.min(numRandomBlocks, among);
  const taken = new Set<number>();
  for (let last = among - count; last < among; ++last) {
    const drawn = Math.floor(next() * (last + 1));
    taken.add(taken.has(drawn) ? last : drawn);
  }
  for (const column of taken) of.see(column, column + 1);
}

/** Lets a row see its window of the listed sizes; the last size repeats. */
function seeVariableWindow(sparsity: Sparsity, of: PatternRow): void {
  const { localWindowBlocks: sizes } = sparsity;
  const last = required(sizes.at(-1));
  let [start, index] = [0, 0];
  for (; start + (sizes[index] ?? last) <= of.row; ++index) start += sizes[index] ?? last;
  seeWindow(sparsity, of, start, start + (sizes[index] ?? last));
}

/**
 * Lets all rows see the columns `ranges`, and rows in `ranges` all columns; no later columns with
 * unidirectional attention.
 */
function seeCross(
  sparsity: Sparsity,
  of: PatternRow,
  ranges: readonly (readonly [number, number])[],
): void {
  for (const [start, end] of ranges) {
    if (start >= of.n) continue;
    if (of.row >= start && of.row < end) seeWindow(sparsity, of, 0, of.n);
    seeWindow(sparsity, of, start, end);
  }
}

const patterns: { readonly [Mode in Sparsity['mode']]: Pattern } = {
  dense: { see: (_, { see, n }) => see(0, n) },
  fixed: {
    see(sparsity, of) {
      const start = of.row - (of.row % sparsity.numLocalBlocks);
      seeWindow(sparsity, of, start, start + sparsity.numLocalBlocks);
      seeGlobals(sparsity, of, fixedGlobals(sparsity, of.head, of.n));
    },
  },
  variable: {
    see(sparsity, of) {
      seeVariableWindow(sparsity, of);
      seeRandom(sparsity, of, of.n);
      seeGlobals(sparsity, of, globalRanges(sparsity));
    },
    min: ({ numRandomBlocks }) => numRandomBlocks,
  },
  bigbird: {
    see(sparsity, of) {
      seeRandom(sparsity, of, isUnidirectional(sparsity) ? of.row + 1 : of.n);
      seeSlidingWindow(sparsity, of);
      seeCross(sparsity, of, [[0, sparsity.numGlobalBlocks]]);
    },
    min: (sparsity) =>
      Math.max(sparsity.numRandomBlocks, sparsity.numSlidingWindowBlocks, sparsity.numGlobalBlocks),
  },
  bslongformer: {
    see(sparsity, of) {
      seeSlidingWindow(sparsity, of);
      seeCross(sparsity, of, globalRanges(sparsity));
    },
    min: ({ numSlidingWindowBlocks }) => numSlidingWindowBlocks,
  },
  local_sliding_window: {
    see: seeSlidingWindow,
    min: ({ numSlidingWindowBlocks }) => numSlidingWindowBlocks,
  },
};

const optionError = (option: string, expected: string, got: unknown, hint = ''): DsError =>
  valueError(`${OP} ${option}`, expected, got, hint);

function requireIndices(option: string, value: unknown, min: number): readonly number[] {
  if (!Array.isArray(value) || (value.length === 0 && min > 0))
    throw optionError(option, 'a list of integers', value);
  for (const each of value) requireInteger(`${OP} ${option}`, each, min);
  return value;
}

/** Throws DS_ARGUMENT for options that the "fixed" pattern does not accept. */
function requireFixed(sparsity: Sparsity): void {
  const { numLocalBlocks: local, numGlobalBlocks: global } = sparsity;
  const { numDifferentGlobalPatterns: patterns, differentLayoutPerHead } = sparsity;
  if (global < 1 || local % global !== 0)
    throw optionError('numGlobalBlocks', `a divisor of the ${local} blocks of a window`, global);
  if (patterns > 1 && !differentLayoutPerHead) {
    const hint = 'Set differentLayoutPerHead: true, so that heads use different patterns.';
    throw optionError('numDifferentGlobalPatterns', '1 if heads share a layout', patterns, hint);
  }
  if (patterns > local / global)
    throw optionError('numDifferentGlobalPatterns', `at most ${local / global}`, patterns);
}

function requireRanges({ globalBlockIndices: starts, globalBlockEndIndices: ends }: Sparsity) {
  if (ends === null) return;
  if (ends.length !== starts.length)
    throw optionError('globalBlockEndIndices', `${starts.length} ends, one for each start`, ends);
  starts.forEach((start, i) => {
    const end = required(ends[i]);
    if (end <= start) throw optionError('globalBlockEndIndices', `an end above ${start}`, end);
  });
}

const DIRECTIONS = ['bidirectional', 'unidirectional'] as const;

/** Returns `given` with all defaults. Throws DS_ARGUMENT with the name of the option. */
export function readSparsity(given: SparsityOptions): Sparsity {
  const options = readOptions(OP, given, namesOf.SparsityOptions);
  const integer = (name: keyof SparsityOptions, fallback: number, min: number): number =>
    requireInteger(`${OP} ${name}`, options[name] ?? fallback, min);
  const modes = keysOf(patterns);
  const mode = requireOneOf(`${OP} mode`, options.mode ?? 'fixed', modes);
  const direction = mode === 'local_sliding_window' ? 'unidirectional' : 'bidirectional';
  const ends = options.globalBlockEndIndices ?? null;
  const sparsity: Sparsity = {
    mode,
    block: requireBlock(`${OP} block`, options.block ?? 16),
    differentLayoutPerHead: options.differentLayoutPerHead ?? false,
    numLocalBlocks: integer('numLocalBlocks', 4, 1),
    numGlobalBlocks: integer('numGlobalBlocks', 1, 0),
    attention: requireOneOf(`${OP} attention`, options.attention ?? direction, DIRECTIONS),
    horizontalGlobalAttention: options.horizontalGlobalAttention ?? false,
    numDifferentGlobalPatterns: integer('numDifferentGlobalPatterns', 1, 1),
    numRandomBlocks: integer('numRandomBlocks', 0, 0),
    localWindowBlocks: requireIndices('localWindowBlocks', options.localWindowBlocks ?? [4], 1),
    globalBlockIndices: requireIndices('globalBlockIndices', options.globalBlockIndices ?? [0], 0),
    globalBlockEndIndices: ends && requireIndices('globalBlockEndIndices', ends, 0),
    numSlidingWindowBlocks: integer('numSlidingWindowBlocks', 3, 1),
    seed: integer('seed', 0, 0),
    maxTokens: integer('maxTokens', 2048, 1),
  };
  if (mode === 'fixed') requireFixed(sparsity);
  requireRanges(sparsity);
  if (sparsity.horizontalGlobalAttention && isUnidirectional(sparsity)) {
    const hint = 'Rows of global blocks see later blocks, which "unidirectional" rules out.';
    throw optionError('horizontalGlobalAttention', 'false with "unidirectional"', true, hint);
  }
  return sparsity;
}

/** Throws DS_ARGUMENT if `tokens` tokens, or `maxTokens`, are too few blocks for the pattern. */
export function requireBlocks(sparsity: Sparsity, tokens: number): void {
  const { mode, maxTokens, block } = sparsity;
  const n = Math.ceil(Math.max(tokens, maxTokens) / block);
  const min = patterns[mode].min?.(sparsity) ?? 1;
  if (n >= min) return;
  throw new DsError({
    code: 'DS_ARGUMENT',
    op: `${OP} ${mode}`,
    expected: `sequences of at least ${min} blocks`,
    got: `${n} blocks of ${block}`,
    hint: 'Raise maxTokens, or reduce the number of blocks.',
  });
}

/** Sizes of a layout, and the function that fills it. */
interface LayoutRequest extends BlockLayoutSizes {
  fill(see: SeeBlocks, head: number, query: number): void;
}

/**
 * Returns the parts of sparseLayout(). Throws DS_ARGUMENT for options that contradict each other.
 */
export function createLayoutRequest(
  given: SparsityOptions,
  heads: number,
  tokens: number,
): LayoutRequest {
  const sparsity = readSparsity(given);
  const { block, mode, differentLayoutPerHead, maxTokens } = sparsity;
  requireInteger(`${OP} heads`, heads, 1);
  requireInteger(`${OP} tokens`, tokens, 0);
  requireBlocks(sparsity, tokens);
  const pattern = patterns[mode];
  const n = Math.ceil(Math.max(tokens, maxTokens) / block);
  return {
    heads: differentLayoutPerHead ? heads : 1,
    block,
    blocks: Math.ceil(tokens / block),
    fill: (see, head, row) => pattern.see(sparsity, { head, row, n, see }),
  };
}
