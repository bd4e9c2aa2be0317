// LengthGroupedSampler: a random order with samples of similar length in each batch.

import type { JsonObject } from '../../types/json.js';
import { valueError } from '../runtime/input-errors.js';
import { namesOf, readOptions } from '../runtime/options.js';
import { requireInteger } from '../runtime/require-number.js';
import { required } from '../runtime/required.js';
import { samplesPerRank, shuffledOrder, takeShare } from './order.js';
import { requireState } from './require-state.js';
import { Sampler } from './sampler.js';

/** Options of a LengthGroupedSampler. `rank` and `worldSize` count data ranks only. */
export interface LengthGroupedOptions {
  /**
   * Samples per batch. It determines the size of groups only: ranks divide the order by samples,
   * not by batches.
   */
  batchSize: number;
  /** Seed of the random order, the same on every rank. Default: 0. */
  seed?: number;
  /** Index of this rank. Default: 0. */
  rank?: number;
  /** Number of ranks. Default: 1. */
  worldSize?: number;
}

/** Maximum number of batches in a group, and minimum number of groups. */
const MAX_BATCHES = 50;
const MIN_GROUPS = 4;

/**
 * Puts samples of similar length into the same batch.
 *
 * - It shuffles all samples and divides the order into groups of min(N / (4 batchSize), 50)
 *   batches.
 * - It sorts each group by length, the longest sample first.
 * - The longest sample of all comes first, so a batch that does not fit memory fails at once.
 * - Ranks take samples in turn, like DistributedSampler.
 *
 * Source: transformers' get_length_grouped_indices().
 */
export class LengthGroupedSampler extends Sampler {
  /** Index of this rank, from 0. */
  readonly rank: number;
  override readonly worldSize: number;
  /** Always false: samples are repeated until all ranks have the same number. */
  readonly dropLast = false;
  private readonly batchSize: number;
  private seed: number;

  /**
   * `lengths`: the length of each sample. Throws DS_ARGUMENT unless `lengths` is a list of numbers
   * and each option is an integer in its range.
   */
  constructor(
    private readonly lengths: ArrayLike<number>,
    given: LengthGroupedOptions,
  ) {
    super();
    const op = 'LengthGroupedSampler';
    const options = readOptions(op, given, namesOf.LengthGroupedOptions);
    const { batchSize, seed = 0, rank = 0, worldSize = 1 } = options;
    if (!(Array.isArray(lengths) || ArrayBuffer.isView(lengths))) {
      const expected = 'a list of the lengths of all samples';
      throw valueError(op, expected, lengths);
    }
    this.batchSize = requireInteger(`${op} batchSize`, batchSize, 1);
    this.seed = requireInteger(`${op} seed`, seed, 0);
    this.worldSize = requireInteger(`${op} worldSize`, worldSize, 1);
    this.rank = requireInteger(`${op} rank`, rank, 0);
  }

  get length(): number {
    return samplesPerRank(this.lengths.length, this);
  }

  order(served: number): Uint32Array {
    return takeShare(this.orderEpoch(), served, this);
  }

  /** Returns the epoch and the seed. Both are the same on every rank. */
  override stateDict(): JsonObject {
    return { ...super.stateDict(), seed: this.seed };
  }

  override loadStateDict(state: JsonObject): void {
    requireState('LengthGroupedSampler', state);
    this.seed = requireInteger('LengthGroupedSampler seed', state.seed, 0);
    super.loadStateDict(state);
  }

  private orderEpoch(): Uint32Array {
    const { lengths, batchSize, seed, epoch } = this;
    const order = shuffledOrder(lengths.length, seed, epoch);
    const batches = Math.floor(lengths.length / (batchSize * MIN_GROUPS));
    const size = Math.max(1, Math.min(batches, MAX_BATCHES)) * batchSize;
    const lengthOf = (index: number): number => required(lengths[index]);
    for (let at = 0; at < order.length; at += size) {
      // The sort is stable, so equal lengths keep the random order.
      order.subarray(at, at + size).sort((a, b) => lengthOf(b) - lengthOf(a));
    }
    return moveLongestFirst(order, size, lengthOf);
  }
}

/**
 * Exchanges the longest sample of all with the first one. Only the first samples of groups are
 * compared, because each is the longest of its group.
 */
function moveLongestFirst(
  order: Uint32Array,
  size: number,
  lengthOf: (index: number) => number,
): Uint32Array {
  let longest = 0;
  for (let at = 0; at < order.length; at += size) {
    if (lengthOf(required(order[at])) > lengthOf(required(order[longest]))) longest = at;
  }
  if (order.length > 0) {
    const first = required(order[0]);
    order[0] = required(order[longest]);
    order[longest] = first;
  }
  return order;
}
