// Computes orders of samples from length, seed and epoch. They are the same on every rank.
import { required } from '../runtime/required.js';
import { PhiloxStream } from './philox.js';

/**
 * Returns a random permutation of 0 to `length` - 1: Fisher-Yates with Philox stream (seed, epoch).
 */
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

/** Returns the indices of `keys` in ascending order of key. Equal keys keep their order. */
export function sortByKey(keys: Float64Array): Uint32Array {
  const { length } = keys;
  const limit = 4 * length + 2 ** 16;
  if (!keys.every((key) => Number.isInteger(key) && key >= 0 && key < limit)) {
    return naturalOrder(length).sort((a, b) => required(keys[a]) - required(keys[b]));
  }
  // For small integers, a counting sort takes a tenth of the time of comparisons.
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

/**
 * Which samples of an order a rank takes. `dropLast`: drops samples that do not fill every rank.
 */
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
 * Returns the samples that this rank has still to serve, after all ranks together have served
 * `served`. Ranks take samples in turn. If the number of samples does not divide, the order repeats
 * from its start.
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
 * Draws `count` numbers less than weights.length, with probabilities in proportion to their
 * weights. It inverts the cumulative weights with random numbers of Philox stream (seed, epoch).
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

/** Returns the index of the first number in the ascending `sums` that is larger than `value`. */
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
 * Draws `count` different numbers less than weights.length without replacement. Returns them by
 * descending log(u) / weight, which is the order of such draws. Source: Efraimidis & Spirakis 2006.
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
