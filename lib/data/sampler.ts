// Samplers: choose the samples that this rank serves in an epoch, and their order.

import type { JsonObject } from '../../types/json.js';
import { DsError } from '../errors.js';
import { formatValue } from '../runtime/format-value.js';
import { argumentError } from '../runtime/input-errors.js';
import { namesOf, readOptions } from '../runtime/options.js';
import { requireInteger } from '../runtime/require-number.js';
import {
  drawWithoutReplacement,
  drawWithReplacement,
  naturalOrder,
  samplesPerRank,
  shuffledOrder,
  takeShare,
} from './order.js';
import { requireState } from './require-state.js';

/**
 * Base class of samplers, which choose the order of samples. A position is the number of samples
 * that all ranks together have served, so it stays valid if the number of ranks changes.
 */
export abstract class Sampler implements Iterable<number> {
  private current = 0;

  /** Number of samples that this rank serves in a whole epoch. */
  abstract readonly length: number;
  /** Number of ranks that divide an epoch. */
  readonly worldSize: number = 1;

  /**
   * Returns the indices that this rank has still to serve, after all ranks together have served
   * `served` samples of the epoch.
   */
  abstract order(served: number): Uint32Array;

  /** The current epoch, from 0. */
  get epoch(): number {
    return this.current;
  }

  /**
   * Sets the epoch. A loader calls it after each epoch. Throws DS_ARGUMENT unless the epoch is a
   * whole number of at least 0.
   */
  setEpoch(epoch: number): void {
    this.current = requireInteger('Sampler.setEpoch', epoch, 0);
  }

  /** Returns the indices of the whole epoch. */
  [Symbol.iterator](): IterableIterator<number> {
    return this.order(0).values();
  }

  /** Returns the epoch and, if the order is random, the seed. Both are the same on every rank. */
  stateDict(): JsonObject {
    return { epoch: this.epoch };
  }

  /** Sets epoch and seed. Throws DS_CHECKPOINT if the state belongs to another kind of order. */
  loadStateDict(state: JsonObject): void {
    requireState('Sampler', state);
    this.setEpoch(state.epoch as number);
  }
}

/** Serves samples in their natural order 0, 1, 2, ... in every epoch. */
export class SequentialSampler extends Sampler {
  readonly length: number;

  /** `length`: number of samples. Throws DS_ARGUMENT unless it is an integer of at least 0. */
  constructor(length: number) {
    super();
    this.length = requireLength('SequentialSampler', length);
  }

  order(served: number): Uint32Array {
    return naturalOrder(this.length).subarray(served);
  }

  /** Returns the epoch, and null as the seed. */
  override stateDict(): JsonObject {
    return { ...super.stateDict(), seed: null };
  }

  override loadStateDict(state: JsonObject): void {
    requireSameKind(null, state);
    super.loadStateDict(state);
  }
}

/** Serves samples in a random order that depends on seed and epoch. */
export class RandomSampler extends Sampler {
  readonly length: number;
  private seed: number;

  /**
   * `length`: number of samples. Throws DS_ARGUMENT unless `length` and `seed` are integers of at
   * least 0.
   */
  constructor(length: number, { seed = 0 }: { seed?: number } = {}) {
    super();
    this.length = requireLength('RandomSampler', length);
    this.seed = requireInteger('RandomSampler seed', seed, 0);
  }

  order(served: number): Uint32Array {
    return shuffledOrder(this.length, this.seed, this.epoch).subarray(served);
  }

  /** Returns the epoch and the seed. */
  override stateDict(): JsonObject {
    return { ...super.stateDict(), seed: this.seed };
  }

  override loadStateDict(state: JsonObject): void {
    requireSameKind(this.seed, state);
    this.seed = requireInteger('RandomSampler seed', state.seed, 0);
    super.loadStateDict(state);
  }
}

/** Options of a DistributedSampler. */
export interface DistributedSamplerOptions {
  /** Index of this rank, from 0. */
  rank: number;
  /** Number of ranks, at least 1. */
  worldSize: number;
  /** Whether the order is random. Default: true. */
  shuffle?: boolean;
  /** Seed of the random order, the same on every rank. Default: 0. */
  seed?: number;
  /**
   * Whether samples that do not fill every rank are dropped instead of repeated. Default: false.
   */
  dropLast?: boolean;
}

/**
 * Divides an order of all samples over the ranks in turn: rank r serves its elements r, r +
 * worldSize, r + 2 worldSize, ... If the number of samples does not divide, the order repeats from
 * its start until all ranks have the same number, as in PyTorch's DistributedSampler. The order is
 * that of RandomSampler.
 */
export class DistributedSampler extends Sampler {
  /** Index of this rank, from 0. */
  readonly rank: number;
  override readonly worldSize: number;
  /** Whether samples that do not fill every rank are dropped. */
  readonly dropLast: boolean;
  private readonly samples: number;
  /** Null if the order is the natural one. */
  private seed: number | null;

  /**
   * `samples`: number of samples in the whole dataset. Throws DS_ARGUMENT unless `rank` is less
   * than `worldSize`, or if an option is invalid.
   */
  constructor(samples: number, given: DistributedSamplerOptions) {
    super();
    const options = readOptions('DistributedSampler', given, namesOf.DistributedSamplerOptions);
    const { rank, worldSize, shuffle = true, seed = 0, dropLast = false } = options;
    this.samples = requireLength('DistributedSampler', samples);
    this.worldSize = requireInteger('DistributedSampler worldSize', worldSize, 1);
    this.rank = requireInteger('DistributedSampler rank', rank, 0);
    this.seed = shuffle ? requireInteger('DistributedSampler seed', seed, 0) : null;
    this.dropLast = dropLast;
    requireRank('DistributedSampler', rank, worldSize);
  }

  get length(): number {
    return samplesPerRank(this.samples, this);
  }

  order(served: number): Uint32Array {
    const { samples, seed } = this;
    const order = seed === null ? naturalOrder(samples) : shuffledOrder(samples, seed, this.epoch);
    return takeShare(order, served, this);
  }

  /**
   * Returns the epoch and the seed, which is null for the natural order. Both are the same on every
   * rank.
   */
  override stateDict(): JsonObject {
    return { ...super.stateDict(), seed: this.seed };
  }

  override loadStateDict(state: JsonObject): void {
    requireSameKind(this.seed, state);
    if (this.seed !== null) this.seed = requireInteger('DistributedSampler seed', state.seed, 0);
    super.loadStateDict(state);
  }
}

/** Throws DS_ARGUMENT unless `rank` is less than `worldSize`. */
export function requireRank(op: string, rank: number, worldSize: number): void {
  if (rank < worldSize) return;
  throw argumentError(`${op} rank`, `a rank below the world size ${worldSize}`, String(rank));
}

/** Options of a WeightedRandomSampler. `rank` and `worldSize` count data ranks only. */
export interface WeightedSamplerOptions {
  /** Number of draws per epoch, of all ranks together. Default: the number of weights. */
  samples?: number;
  /** Whether a sample may be drawn repeatedly. Default: true. */
  replacement?: boolean;
  /** Seed of the random order, the same on every rank. Default: 0. */
  seed?: number;
  /** Index of this rank. Default: 0. */
  rank?: number;
  /** Number of ranks. Default: 1. */
  worldSize?: number;
}

/**
 * Draws sample i with a probability in proportion to weights[i]. The draws depend on seed and
 * epoch. Ranks take them in turn, like DistributedSampler. Sources:
 * torch.utils.data.WeightedRandomSampler; Efraimidis & Spirakis 2006 for draws without replacement.
 */
export class WeightedRandomSampler extends Sampler {
  /** Index of this rank, from 0. */
  readonly rank: number;
  override readonly worldSize: number;
  /** Always false: draws are repeated until all ranks have the same number. */
  readonly dropLast = false;
  private readonly weights: Float64Array;
  private readonly samples: number;
  private readonly replacement: boolean;
  private seed: number;

  /**
   * The weights must be finite and at least 0, and one of them larger than 0. Throws DS_ARGUMENT
   * otherwise, and if draws without replacement exceed the number of weights larger than 0.
   */
  constructor(weights: ArrayLike<number>, given: WeightedSamplerOptions = {}) {
    super();
    const op = 'WeightedRandomSampler';
    const options = readOptions(op, given, namesOf.WeightedSamplerOptions);
    this.weights = requireWeights(op, weights);
    const { samples = weights.length, replacement = true } = options;
    const { seed = 0, rank = 0, worldSize = 1 } = options;
    this.samples = requireLength(`${op} samples`, samples);
    this.replacement = replacement;
    this.seed = requireInteger(`${op} seed`, seed, 0);
    this.worldSize = requireInteger(`${op} worldSize`, worldSize, 1);
    this.rank = requireInteger(`${op} rank`, rank, 0);
    requireRank(op, rank, worldSize);
    const possible = this.weights.filter((weight) => weight > 0).length;
    if (replacement || samples <= possible) return;
    throw argumentError(
      `${op} samples`,
      `at most ${possible} without replacement, as many as weights are above 0`,
      String(samples),
    );
  }

  get length(): number {
    return samplesPerRank(this.samples, this);
  }

  order(served: number): Uint32Array {
    const { weights, samples, seed, epoch } = this;
    const draw = this.replacement ? drawWithReplacement : drawWithoutReplacement;
    return takeShare(draw(weights, samples, seed, epoch), served, this);
  }

  /** Returns the epoch and the seed. Both are the same on every rank. */
  override stateDict(): JsonObject {
    return { ...super.stateDict(), seed: this.seed };
  }

  override loadStateDict(state: JsonObject): void {
    requireSameKind(this.seed, state);
    this.seed = requireInteger('WeightedRandomSampler seed', state.seed, 0);
    super.loadStateDict(state);
  }
}

function requireWeights(op: string, weights: unknown): Float64Array {
  const numbers = Array.isArray(weights) || ArrayBuffer.isView(weights) ? weights : null;
  const values = Float64Array.from((numbers ?? []) as ArrayLike<number>);
  const invalid = values.findIndex((weight) => !(weight >= 0 && weight < Number.POSITIVE_INFINITY));
  if (invalid < 0 && values.some((weight) => weight > 0)) return values;
  throw argumentError(
    `${op} weights`,
    'a list of finite numbers that are not negative, one of them above 0',
    invalid < 0 ? formatValue(weights) : `${values[invalid]} at ${invalid}`,
  );
}

/**
 * Returns `length`. Throws DS_LIMIT if it needs more than 32 bits, the size of an index in an
 * order.
 */
function requireLength(op: string, length: number): number {
  requireInteger(`${op} length`, length, 0);
  if (length < 2 ** 32) return length;
  throw new DsError({
    code: 'DS_LIMIT',
    op: `${op} length`,
    expected: 'fewer than 2^32 samples',
    got: String(length),
    hint: 'Use longer samples.',
  });
}

/**
 * Throws DS_CHECKPOINT if only one of the saved and the present order is random: a position in the
 * one has no meaning in the other.
 */
function requireSameKind(ownSeed: number | null, state: JsonObject): void {
  requireState('Sampler', state);
  const { seed: saved } = state;
  if ((ownSeed === null) === (saved === null)) return;
  const describeOrder = (seed: unknown): string =>
    seed === null ? 'the natural order' : 'a shuffled order';
  throw new DsError({
    code: 'DS_CHECKPOINT',
    op: 'Sampler.loadStateDict',
    expected: `a position in ${describeOrder(ownSeed)}`,
    got: `a position in ${describeOrder(saved)}`,
    hint: 'Resume with the same shuffle, or without the loader state.',
  });
}
