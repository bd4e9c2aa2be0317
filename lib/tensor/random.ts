// The library's generator state: a seed and an offset that advances with every random op.

/** Where a random op starts in the Philox stream. */
export interface RandomState {
  seed: number;
  offset: number;
}

let state: RandomState = { seed: 0, offset: 0 };

/** Restarts the generator. The same seed gives the same numbers on every device. */
export function seed(value: number): void {
  state = { seed: value, offset: 0 };
}

export function getRandomState(): RandomState {
  return { ...state };
}

export function setRandomState(next: RandomState): void {
  state = { ...next };
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
