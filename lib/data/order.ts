// Computes the order of samples in an epoch from length, seed and epoch.
import { required } from '../runtime/required.js';
import { PhiloxStream } from './philox.js';

/** Returns a random permutation of [0, length): Fisher-Yates over Philox stream (seed, epoch). */
export function shuffledOrder(length: number, seed: number, epoch: number): Uint32Array {
  const order = naturalOrder(length);
  const random = new PhiloxStream(seed, epoch);
  for (let last = length - 1; last > 0; --last) {
    const other = random.below(last + 1);
    const swapped = required(order[last]);
    order[last] = required(order[other]);
    order[other] = swapped;
  }
  return order;
}

/** Returns 0, 1, 2, ..., length - 1. */
export function naturalOrder(length: number): Uint32Array {
  const order = new Uint32Array(length);
  for (let i = 0; i < length; ++i) order[i] = i;
  return order;
}

/** Returns the indices of `keys` in ascending order of key; equal keys keep their order. */
export function sortByKey(keys: Float64Array): Uint32Array {
  const { length } = keys;
  const limit = 4 * length + 2 ** 16;
  if (!keys.every((key) => Number.isInteger(key) && key >= 0 && key < limit)) {
    return naturalOrder(length).sort((a, b) => required(keys[a]) - required(keys[b]));
  }
  // Counting sort: comparisons take ten times as long.
  const starts = new Uint32Array(limit + 1);
  for (const key of keys) starts[key + 1] = required(starts[key + 1]) + 1;
  for (let key = 1; key <= limit; ++key) {
    starts[key] = required(starts[key]) + required(starts[key - 1]);
  }
  const order = new Uint32Array(length);
  for (let i = 0; i < length; ++i) {
    const key = required(keys[i]);
    const at = required(starts[key]);
    order[at] = i;
    starts[key] = at + 1;
  }
  return order;
}

/** A rank's share of an order; `dropLast` drops samples that do not fill every rank. */
interface Deal {
  readonly rank: number;
  readonly worldSize: number;
  readonly dropLast: boolean;
}

/** Returns the number of samples of each rank. */
export function samplesPerRank(samples: number, { worldSize, dropLast }: Deal): number {
  return dropLast ? Math.floor(samples / worldSize) : Math.ceil(samples / worldSize);
}

/**
 * Returns the remaining samples of a rank after all ranks together have served `served` samples.
 * Ranks take samples in turn; if these do not divide evenly, they repeat from the beginning.
 */
export function takeShare(order: Uint32Array, served: number, deal: Deal): Uint32Array {
  const ownSamples = new Uint32Array(samplesPerRank(Math.max(0, order.length - served), deal));
  for (let i = 0; i < ownSamples.length; ++i) {
    const position = served + deal.rank + i * deal.worldSize;
    ownSamples[i] = required(order[position % order.length]);
  }
  return ownSamples;
}

/**
 * Draws `count` numbers below weights.length with probabilities in proportion to their weights, by
 * the inverse of the cumulative weights, from Philox stream (seed, epoch).
 */
export function drawWithReplacement(
  weights: Float64Array,
  count: number,
  seed: number,
  epoch: number,
): Uint32Array {
  const sums = new Float64Array(weights.length);
  let total = 0;
  for (let i = 0; i < weights.length; ++i) sums[i] = total += required(weights[i]);
  const random = new PhiloxStream(seed, epoch);
  return Uint32Array.from({ length: count }, () => firstAbove(sums, random.unit() * total));
}

/** Returns the first index in the rising `sums` with a sum above `value`. */
function firstAbove(sums: Float64Array, value: number): number {
  let [low, high] = [0, sums.length - 1];
  while (low < high) {
    const middle = (low + high) >>> 1;
    if (required(sums[middle]) > value) high = middle;
    else low = middle + 1;
  }
  return low;
}

/**
 * Draws `count` distinct numbers below weights.length, in the order of draws without replacement.
 * Source: Efraimidis & Spirakis 2006: the largest log(u) / weight first.
 */
export function drawWithoutReplacement(
  weights: Float64Array,
  count: number,
  seed: number,
  epoch: number,
): Uint32Array {
  const random = new PhiloxStream(seed, epoch);
  const keys = weights.map((weight) => Math.log(1 - random.unit()) / weight);
  const order = naturalOrder(weights.length).filter((i) => required(weights[i]) > 0);
  return order.sort((a, b) => required(keys[b]) - required(keys[a])).slice(0, count);
}
