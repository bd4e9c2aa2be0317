// The library's generator state: a seed and an offset that advances with every random op.

import { readOptions } from '../runtime/options.js';
import { requireInteger } from '../runtime/require-number.js';

/** Where a random op starts in the Philox stream. */
export interface RandomState {
  seed: number;
  offset: number;
}

let state: RandomState = { seed: 0, offset: 0 };

/** Restarts the generator. The same seed gives the same numbers on every device. Throws DS_ARGUMENT. */
export function seed(value: number): void {
  state = { seed: requireInteger('seed', value, 0), offset: 0 };
}

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

/** Runs `body` from `at`, then goes on as if it had not run: how checkpointed dropout replays. */
export function replayRandom<T>(at: RandomState, body: () => T): T {
  const saved = state;
  state = { ...at };
  try {
    return body();
  } finally {
    state = saved;
  }
}
