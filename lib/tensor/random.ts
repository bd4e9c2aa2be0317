// The library's generator state: a seed and an offset that advances with every random op.

import { readOptions } from '../runtime/options.js';
import { requireInteger } from '../runtime/require-number.js';
import type { HeadExchange } from './head-exchange.js';

/** The start of a random op in the Philox stream. */
export interface RandomState {
  /** The argument of seed(). */
  seed: number;
  /** Advances with every random op. */
  offset: number;
}

/**
 * This rank's part of a global micro-batch. Sample i of the part is sample i * ranks + rank of the
 * micro-batch.
 */
export interface SampleShare {
  /** Samples of this rank. */
  samples: number;
  /** Number of this rank, from 0. */
  rank: number;
  /** Ranks that share the micro-batch. */
  ranks: number;
}

/** Where the elements of a part lie in the complete tensor. The kernels read this format. */
export interface ElementPart {
  /** Index of the part's first element in the complete tensor. */
  first: number;
  /** Contiguous elements before the next row; 0: all are contiguous. */
  row: number;
  /** Distance between the starts of rows in the complete tensor. */
  stride: number;
}

/** The part that is the complete tensor, in order. */
export const inOrder: ElementPart = { first: 0, row: 0, stride: 0 };

/** This rank's part of a dim (tokens or channels) that several ranks share. */
export interface DimShare {
  /** Index of this rank's first token or channel among all. */
  first: number;
  /** Number of tokens or channels on this rank. */
  count: number;
  /** Number of tokens or channels on all ranks. */
  whole: number;
}

/** This rank's tokens of each sample. */
export interface TokenShare extends DimShare {
  /** Gathers all tokens for attention. Default: attention gets all tokens from its caller. */
  readonly heads?: HeadExchange;
}

/** The complete state that random ops depend on. */
export interface RandomPoint {
  /** State at which the next random op starts. */
  state: RandomState;
  /** This rank's part of a global batch; null: all of it. */
  share: SampleShare | null;
  /** This rank's tokens of each sample; null: all of them. */
  tokens: TokenShare | null;
}

let state: RandomState = { seed: 0, offset: 0 };
/** Null if each rank has all samples. */
let share: SampleShare | null = null;
/** Null if each sample's tokens are on one rank. */
let tokens: TokenShare | null = null;

/**
 * Restarts the generator. The same seed gives the same numbers on every device. Throws DS_ARGUMENT
 * unless `value` is an integer from 0.
 */
export function seed(value: number): void {
  state = { seed: requireInteger('seed', value, 0), offset: 0 };
}

/** Returns a copy of the generator's state, for setRandomState(). */
export function getRandomState(): RandomState {
  return { ...state };
}

/**
 * Continues from a state of getRandomState(). Throws DS_ARGUMENT unless both numbers are integers
 * from 0.
 */
export function setRandomState(next: RandomState): void {
  const { seed: value, offset } = readOptions('setRandomState', next, { seed: true, offset: true });
  state = {
    seed: requireInteger('setRandomState seed', value, 0),
    offset: requireInteger('setRandomState offset', offset, 0),
  };
}

/** Returns the next start in the stream; two random ops never share one. */
export function nextRandom(): RandomState {
  return { seed: state.seed, offset: state.offset++ };
}

/** Returns the present state of random ops, for replayRandom(). */
export function randomPoint(): RandomPoint {
  return { state: { ...state }, share, tokens };
}

/**
 * Runs `body` from the state `at`, then restores the current state: the replay of a checkpoint gets
 * its dropout again.
 */
export function replayRandom<T>(at: RandomPoint, body: () => T): T {
  const saved = { state, share, tokens };
  state = { ...at.state };
  ({ share, tokens } = at);
  try {
    return body();
  } finally {
    ({ state, share, tokens } = saved);
  }
}

/**
 * Runs `body`. Its tensors with a multiple of `samples` rows hold this rank's samples of a global
 * micro-batch.
 */
export function sharingSamples<T>(samples: SampleShare | null, body: () => T): T {
  const saved = share;
  share = samples;
  try {
    return body();
  } finally {
    share = saved;
  }
}

/**
 * Runs `body`. Its tensors [B, tokens, ..] of three dims or more with `share.count` tokens hold
 * this rank's tokens. Tensors of other sizes are equal on all ranks.
 */
export function sharingTokens<T>(ownShare: TokenShare | null, body: () => T): T {
  const saved = tokens;
  tokens = ownShare;
  try {
    return body();
  } finally {
    tokens = saved;
  }
}

/** Returns the tokens of sharingTokens(); null if this rank has all tokens. */
export function sharedTokens(): TokenShare | null {
  return tokens;
}

/** Maps a tensor's elements to the elements of all ranks. */
interface WholeMapping extends ElementPart {
  /** Elements of a sample, of all ranks that share its tokens or channels. */
  sample: number;
  rank: number;
  ranks: number;
}

/**
 * Maps a tensor's elements to the elements of all ranks, in the kernels' format, so that an element
 * draws the number that it would draw on one rank. The mapping goes by sample if the rows are
 * samples, by token if ranks share tokens, and by channel if `channels` is given. Otherwise every
 * rank draws the same numbers.
 */
export function mapToWhole(
  { shape, numel }: { shape: readonly number[]; numel: number },
  channels: DimShare | null = null,
): WholeMapping {
  const part = channels
    ? mapDimShare(shape, shape.length - 1, channels)
    : tokens && shape.length >= 3 && shape[1] === tokens.count
      ? mapDimShare(shape, 1, tokens)
      : inOrder;
  const { first, row, stride } = part;
  const all = row === 0 ? numel : (numel / row) * stride;
  const rows = shape[0] ?? 0;
  if (!share || numel === 0 || rows % share.samples !== 0) {
    return { sample: Math.max(1, all), rank: 0, ranks: 1, first, row, stride };
  }
  const { samples, rank, ranks } = share;
  return { sample: all / samples, rank, ranks, first, row, stride };
}

/** Maps a contiguous tensor of `shape`, which has `share` of `dim`, to the complete tensor. */
function mapDimShare(shape: readonly number[], dim: number, share: DimShare): ElementPart {
  const inner = shape.slice(dim + 1).reduce((product, size) => product * size, 1);
  if (share.count === share.whole || inner === 0) return inOrder;
  return { first: share.first * inner, row: share.count * inner, stride: share.whole * inner };
}
