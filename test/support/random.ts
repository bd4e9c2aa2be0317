// Random numbers for tests. A failing test prints the seed, and DS_TEST_SEED repeats it.
import { randomInt } from 'node:crypto';

declare global {
  /** The seed that the environment prints for a failing test. */
  var seedOfTests: number | undefined;
}

function firstSeed(): number {
  const text = process.env.DS_TEST_SEED;
  if (text === undefined) return randomInt(2 ** 31);
  if (/^\d+$/.test(text)) return Number(text);
  throw new Error(`DS_TEST_SEED: expected a whole number, got ${JSON.stringify(text)}`);
}

/** Numbers in [0, 1), determined by the seed (mulberry32). */
export function seededRandom(seed: number): () => number {
  let state = seed >>> 0;
  return () => {
    state = (state + 0x6d2b79f5) >>> 0;
    let mixed = Math.imul(state ^ (state >>> 15), state | 1);
    mixed ^= mixed + Math.imul(mixed ^ (mixed >>> 7), mixed | 61);
    return ((mixed ^ (mixed >>> 14)) >>> 0) / 2 ** 32;
  };
}

let draw: (() => number) | null = null;

/** In [0, 1). The first call of a file draws the seed. */
export function random(): number {
  if (!draw) {
    const seed = firstSeed();
    globalThis.seedOfTests = seed;
    // Under jest the environment prints it if a test fails.
    if (!('describe' in globalThis)) process.stderr.write(`DS_TEST_SEED=${seed}\n`);
    draw = seededRandom(seed);
  }
  return draw();
}

/** A whole number from 0 to `limit` - 1. */
export const below = (limit: number): number => Math.floor(random() * limit);
