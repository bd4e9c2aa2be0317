// In which order an epoch visits the samples: a function of length, seed and epoch alone.
import { PhiloxStream } from './philox.js';

/** A permutation of [0, length): Fisher-Yates over Philox stream (seed, epoch). */
export function shuffledOrder(length: number, seed: number, epoch: number): Uint32Array {
  const order = naturalOrder(length);
  const random = new PhiloxStream(seed, epoch);
  for (let last = length - 1; last > 0; --last) {
    const other = random.below(last + 1);
    const kept = order[last] as number;
    order[last] = order[other] as number;
    order[other] = kept;
  }
  return order;
}

/** 0, 1, 2, ... */
export function naturalOrder(length: number): Uint32Array {
  const order = new Uint32Array(length);
  for (let i = 0; i < length; ++i) order[i] = i;
  return order;
}
