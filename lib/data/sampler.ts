// Samplers: choose the samples of this rank in an epoch, and their order.

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
 * Base class of samplers. A sampler chooses the order of samples. A position counts the samples
 * that all ranks together have served, so it stays valid if the world size changes.
 */
export abstract class Sampler implements Iterable<number> {
  private current = 0;

  /** Number of samples that this rank serves in a whole epoch. */
  abstract readonly length: number;
  /** Number of ranks that share an epoch. */
  readonly worldSize: number = 1;

  /**
   * Returns the remaining indices of this rank after all ranks together have served `served` of
   * this epoch.
   */
  abstract order(served: number): Uint32Array;

  /** The current epoch, from 0. */
  get epoch(): number {
    return this.current;
  }

  /**
   * Sets the epoch; a loader advances it after each epoch. Throws DS_ARGUMENT unless the epoch is a
   * whole number from 0.
   */
  setEpoch(epoch: number): void {
    this.current = requireInteger('Sampler.setEpoch', epoch, 0);
  }

  /** Returns the indices of the whole epoch. */
  [Symbol.iterator](): IterableIterator<number> {
    return this.order(0).values();
  }

  /** Returns the epoch, and the seed if there is one. Both are the same on every rank. */
  stateDict(): JsonObject {
    return { epoch: this.epoch };
  }

  /** Sets the position. Throws DS_CHECKPOINT if the state belongs to another kind of order. */
  loadStateDict(state: JsonObject): void {
    requireState('Sampler', state);
    this.setEpoch(state.epoch as number);
  }
}

/** Serves samples in their natural order, 0, 1, 2, ..., in every epoch. */
export class SequentialSampler extends Sampler {
  readonly length: number;

  /** `length` samples. Throws DS_ARGUMENT unless `length` is an integer from 0. */
  constructor(length: number) {
    super();
    this.length = requireLength('SequentialSampler', length);
  }

  order(served: number): Uint32Array {
    return naturalOrder(this.length).subarray(served);
  }

  /** Returns the epoch; its seed is null. */
  override stateDict(): JsonObject {
    return { ...super.stateDict(), seed: null };
  }

  override loadStateDict(state: JsonObject): void {
    requireSameKind(null, state);
    super.loadStateDict(state);
  }
}

/** Serves samples in a new random order in every epoch, a function of (seed, epoch). */
export class RandomSampler extends Sampler {
  readonly length: number;
  private seed: number;

  /** Throws DS_ARGUMENT unless `length` and `seed` are integers from 0. */
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
  /** Number of this rank, from 0. */
  rank: number;
  /** Number of ranks, at least 1. */
  worldSize: number;
  /** Whether the order is random. Default: true. */
  shuffle?: boolean;
  /** Seed of the random order. Default: 0; the same on every rank. */
  seed?: number;
  /** Drops the samples that do not fill every rank, instead of repeating some. Default: false. */
  dropLast?: boolean;
}

/**
 * Deals one order of all samples to the ranks in turn: rank r serves its elements r, r + worldSize,
 * ... If they do not divide evenly, the order repeats from its beginning until all ranks have the
 * same number, as in PyTorch's DistributedSampler. The order is RandomSampler's.
 */
export class DistributedSampler extends Sampler {
  /** Index of this rank, from 0. */
  readonly rank: number;
  override readonly worldSize: number;
  /** Whether the sampler drops samples that do not divide evenly over the ranks. */
  readonly dropLast: boolean;
  private readonly samples: number;
  /** Null for the natural order. */
  private seed: number | null;

  /**
   * `samples`: the number of samples in the whole dataset. Throws DS_ARGUMENT for a rank outside
   * the world.
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

/** Throws DS_ARGUMENT unless `rank` is below `worldSize`. */
export function requireRank(op: string, rank: number, worldSize: number): void {
  if (rank < worldSize) return;
  throw argumentError(`${op} rank`, `a rank below the world size ${worldSize}`, String(rank));
}

/** Options of a WeightedRandomSampler. `rank` and `worldSize` count data ranks. */
export interface WeightedSamplerOptions {
  /** Number of draws per epoch, of all ranks together. Default: the number of weights. */
  samples?: number;
  /** Whether a sample may be drawn again. Default: true. */
  replacement?: boolean;
  /** Seed of the random order. Default: 0; the same on every rank. */
  seed?: number;
  /** Number of this rank. Default: 0. */
  rank?: number;
  /** Number of ranks. Default: 1. */
  worldSize?: number;
}

/**
 * Draws sample i with a probability in proportion to weights[i]. Draws depend on (seed, epoch);
 * ranks share them in turn, like DistributedSampler. Source:
 * torch.utils.data.WeightedRandomSampler; Efraimidis & Spirakis 2006 for draws without replacement.
 */
export class WeightedRandomSampler extends Sampler {
  /** Number of this rank, from 0. */
  readonly rank: number;
  override readonly worldSize: number;
  /** False: draws are repeated until all ranks have the same number. */
  readonly dropLast = false;
  private readonly weights: Float64Array;
  private readonly samples: number;
  private readonly replacement: boolean;
  private seed: number;

  /**
   * Weights must be finite and not negative, at least one of them above 0. Throws DS_ARGUMENT, also
   * for more draws without replacement than weights above 0.
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
 * Returns the length. Throws DS_LIMIT if it exceeds 32 bits, the size of the numbers in an order.
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
 * Throws DS_CHECKPOINT for a state of the other kind: a position in a shuffled order has no meaning
 * in the natural order.
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
