// The library's generator state: a seed and an offset that advances with every random op.

import { readOptions } from '../runtime/options.js';
import { requireInteger } from '../runtime/require-number.js';
import type { HeadExchange } from './head-exchange.js';

/** Where a random op starts in the Philox stream. */
export interface RandomState {
  /** As seed() got it. */
  seed: number;
  /** Advances with every random op. */
  offset: number;
}

/**
 * The part of a global micro-batch that this rank computes: its sample i is sample i * ranks + rank
 * of all.
 */
export interface SampleShare {
  /** Of this rank. */
  samples: number;
  /** Which of the ranks this is, from 0. */
  rank: number;
  /** Ranks that share the micro-batch. */
  ranks: number;
}

/** Which elements of a whole tensor those of a part are, as kernels take it. */
export interface ElementPart {
  /** The first one's number in the whole. */
  first: number;
  /** Elements that follow each other before the next row; 0 where all do. */
  row: number;
  /** From the start of a row to that of the next one, in the whole. */
  stride: number;
}

/** All of a tensor, in order. */
export const inOrder: ElementPart = { first: 0, row: 0, stride: 0 };

/** The part of a dim, tokens or channels, that this rank has of what several have together. */
export interface DimShare {
  /** The first one's number among all. */
  first: number;
  /** How many are here. */
  count: number;
  /** How many there are. */
  whole: number;
}

/** This rank's tokens of those of each sample. */
export interface TokenShare extends DimShare {
  /** Brings all tokens together for attention. Default: what attends is given all of them. */
  readonly heads?: HeadExchange;
}

/** All that random ops depend on. */
export interface RandomPoint {
  /** Where the next random op starts. */
  state: RandomState;
  /** This rank's part of a global batch; null for all of it. */
  share: SampleShare | null;
  /** This rank's tokens of those of each sample; null for all of them. */
  tokens: TokenShare | null;
}

let state: RandomState = { seed: 0, offset: 0 };
/** Null where samples are not dealt out. */
let share: SampleShare | null = null;
/** Null where the tokens of a sample are on one rank. */
let tokens: TokenShare | null = null;

/**
 * Restarts the generator. The same seed gives the same numbers on every device. Throws DS_ARGUMENT.
 */
export function seed(value: number): void {
  state = { seed: requireInteger('seed', value, 0), offset: 0 };
}

/** A copy of the generator's state, for setRandomState(). */
export function getRandomState(): RandomState {
  return { ...state };
}

/** Goes on from a state that getRandomState() gave. Throws DS_ARGUMENT. */
export function setRandomState(next: RandomState): void {
  const { seed: value, offset } = readOptions('setRandomState', next, { seed: true, offset: true });
  state = {
    seed: requireInteger('setRandomState seed', value, 0),
    offset: requireInteger('setRandomState offset', offset, 0),
  };
}

/** Takes the next place in the stream; two random ops never share one. */
export function nextRandom(): RandomState {
  return { seed: state.seed, offset: state.offset++ };
}

/** Where random ops are now. */
export function randomPoint(): RandomPoint {
  return { state: { ...state }, share, tokens };
}

/** Runs `body` from `at`, then goes on as if it had not run: how checkpointed dropout replays. */
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
 * Runs `body`, whose tensors with a multiple of `samples` rows hold this rank's samples of a global
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
 * Runs `body`, whose tensors [B, tokens, ..] of three dims or more with as many tokens as
 * `share.count` have those of this rank; those of other sizes are alike on all ranks.
 */
export function sharingTokens<T>(own: TokenShare | null, body: () => T): T {
  const saved = tokens;
  tokens = own;
  try {
    return body();
  } finally {
    tokens = saved;
  }
}

/** The tokens of sharingTokens(); null where all are here. */
export function sharedTokens(): TokenShare | null {
  return tokens;
}

/** Where a tensor's elements are among those of all ranks. */
export interface PlaceAmongRanks extends ElementPart {
  /** Elements of a sample, of all ranks that share its tokens or channels. */
  sample: number;
  rank: number;
  ranks: number;
}

/**
 * Which of all ranks' elements a tensor's are, as kernels take it: by sample, where its rows are
 * those of samples, by token where tokens are shared out, and by channel where `channels` says that
 * the last dim is, so that an element draws what it would draw on one rank; else every rank's are
 * the same.
 */
export function placeAmongRanks(
  { shape, numel }: { shape: readonly number[]; numel: number },
  channels: DimShare | null = null,
): PlaceAmongRanks {
  const part = channels
    ? partAlong(shape, shape.length - 1, channels)
    : tokens && shape.length >= 3 && shape[1] === tokens.count
      ? partAlong(shape, 1, tokens)
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

/** The part of a contiguous tensor that has `share` of a dim, itself of `shape`. */
function partAlong(shape: readonly number[], dim: number, share: DimShare): ElementPart {
  const inner = shape.slice(dim + 1).reduce((product, size) => product * size, 1);
  if (share.count === share.whole || inner === 0) return inOrder;
  return { first: share.first * inner, row: share.count * inner, stride: share.whole * inner };
}
