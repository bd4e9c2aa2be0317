// The library's generator state: a seed and an offset that advances with every random op.

import { readOptions } from '../runtime/options.js';
import { requireInteger } from '../runtime/require-number.js';

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

/** All that random ops depend on. */
export interface RandomPoint {
  /** Where the next random op starts. */
  state: RandomState;
  /** This rank's part of a global batch; null for all of it. */
  share: SampleShare | null;
}

let state: RandomState = { seed: 0, offset: 0 };
/** Null where samples are not dealt out. */
let share: SampleShare | null = null;

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
  return { state: { ...state }, share };
}

/** Runs `body` from `at`, then goes on as if it had not run: how checkpointed dropout replays. */
export function replayRandom<T>(at: RandomPoint, body: () => T): T {
  const saved = { state, share };
  state = { ...at.state };
  share = at.share;
  try {
    return body();
  } finally {
    ({ state, share } = saved);
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
 * Which of all ranks' elements a tensor's are, as kernels take it: by sample, where its rows are
 * those of samples, so that an element draws what it would draw on one rank; else every rank's are
 * the same.
 */
export function placeAmongRanks({ shape, numel }: { shape: readonly number[]; numel: number }): {
  sample: number;
  rank: number;
  ranks: number;
} {
  const rows = shape[0] ?? 0;
  if (!share || numel === 0 || rows % share.samples !== 0) {
    return { sample: Math.max(1, numel), rank: 0, ranks: 1 };
  }
  const { samples, rank, ranks } = share;
  return { sample: numel / samples, rank, ranks };
}
