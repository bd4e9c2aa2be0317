// Samplers: which samples this rank visits in an epoch, and in which order.
import type { JsonObject } from '../../types/json.js';
import { DsError } from '../errors.js';
import { type OptionNames, readOptions } from '../runtime/options.js';
import { requireInteger } from '../runtime/require-number.js';
import { naturalOrder, shuffledOrder } from './order.js';

/** Positions count the samples that all ranks have served, so that they hold at any world size. */
export abstract class Sampler implements Iterable<number> {
  private current = 0;

  /** Samples that this rank serves in a whole epoch. */
  abstract readonly length: number;
  /** Ranks that share an epoch. */
  readonly worldSize: number = 1;

  /** The indices left to this rank when all ranks together have served `served` of this epoch. */
  abstract order(served: number): Uint32Array;

  get epoch(): number {
    return this.current;
  }

  /** Which epoch to serve from now on; a loader moves on by itself. Throws DS_ARGUMENT. */
  setEpoch(epoch: number): void {
    this.current = requireInteger('Sampler.setEpoch', epoch, 0);
  }

  /** The indices of the whole epoch. */
  [Symbol.iterator](): IterableIterator<number> {
    return this.order(0).values();
  }

  stateDict(): JsonObject {
    return { epoch: this.epoch };
  }

  /** Throws DS_CHECKPOINT when the state is that of another kind of order. */
  loadStateDict(state: JsonObject): void {
    this.setEpoch(state.epoch as number);
  }
}

/** 0, 1, 2, ... in every epoch. */
export class SequentialSampler extends Sampler {
  readonly length: number;

  /** `length` samples. Throws DS_ARGUMENT. */
  constructor(length: number) {
    super();
    this.length = requireLength('SequentialSampler', length);
  }

  order(served: number): Uint32Array {
    return naturalOrder(this.length).subarray(served);
  }

  override stateDict(): JsonObject {
    return { ...super.stateDict(), seed: null };
  }

  override loadStateDict(state: JsonObject): void {
    requireSameKind(null, state.seed);
    super.loadStateDict(state);
  }
}

/** A new random order in every epoch, a function of (seed, epoch). */
export class RandomSampler extends Sampler {
  readonly length: number;
  private seed: number;

  /** Throws DS_ARGUMENT. */
  constructor(length: number, { seed = 0 }: { seed?: number } = {}) {
    super();
    this.length = requireLength('RandomSampler', length);
    this.seed = requireInteger('RandomSampler seed', seed, 0);
  }

  order(served: number): Uint32Array {
    return shuffledOrder(this.length, this.seed, this.epoch).subarray(served);
  }

  override stateDict(): JsonObject {
    return { ...super.stateDict(), seed: this.seed };
  }

  override loadStateDict(state: JsonObject): void {
    requireSameKind(this.seed, state.seed);
    this.seed = requireInteger('RandomSampler seed', state.seed, 0);
    super.loadStateDict(state);
  }
}

/** A rank's place among those that share the samples, and the order in which they do. */
export interface DistributedSamplerOptions {
  rank: number;
  worldSize: number;
  /** Default true. */
  shuffle?: boolean;
  /** Default 0; the same on every rank. */
  seed?: number;
  /** Leaves out the samples that do not fill every rank, instead of repeating some. Default false. */
  dropLast?: boolean;
}

const NAMES: OptionNames<DistributedSamplerOptions> = {
  ...{ rank: true, worldSize: true, shuffle: true, seed: true, dropLast: true },
};

/**
 * Deals one order of all samples to the ranks in turn: rank r serves its elements r, r + worldSize,
 * ... Where they do not come out even, the order is repeated from its beginning until every rank
 * has as many, as PyTorch's DistributedSampler does. The order is RandomSampler's.
 */
export class DistributedSampler extends Sampler {
  readonly rank: number;
  override readonly worldSize: number;
  private readonly samples: number;
  private readonly dropLast: boolean;
  /** Null for the natural order. */
  private seed: number | null;

  /** `samples` of the whole dataset. Throws DS_ARGUMENT for a rank outside the world. */
  constructor(samples: number, given: DistributedSamplerOptions) {
    super();
    const options = readOptions('DistributedSampler', given, NAMES);
    const { rank, worldSize, shuffle = true, seed = 0, dropLast = false } = options;
    this.samples = requireLength('DistributedSampler', samples);
    this.worldSize = requireInteger('DistributedSampler worldSize', worldSize, 1);
    this.rank = requireInteger('DistributedSampler rank', rank, 0);
    this.seed = shuffle ? requireInteger('DistributedSampler seed', seed, 0) : null;
    this.dropLast = dropLast;
    if (rank < worldSize) return;
    throw new DsError({
      code: 'DS_ARGUMENT',
      op: 'DistributedSampler rank',
      expected: `a rank below the world size ${worldSize}`,
      got: String(rank),
    });
  }

  get length(): number {
    return this.share(this.samples);
  }

  order(served: number): Uint32Array {
    const { samples, seed, rank, worldSize } = this;
    const whole = seed === null ? naturalOrder(samples) : shuffledOrder(samples, seed, this.epoch);
    const count = this.share(Math.max(0, samples - served));
    const mine = new Uint32Array(count);
    for (let i = 0; i < count; ++i) {
      mine[i] = whole[(served + rank + i * worldSize) % samples] as number;
    }
    return mine;
  }

  /** This rank's part of so many samples. */
  private share(samples: number): number {
    const each = samples / this.worldSize;
    return this.dropLast ? Math.floor(each) : Math.ceil(each);
  }

  override stateDict(): JsonObject {
    return { ...super.stateDict(), seed: this.seed };
  }

  override loadStateDict(state: JsonObject): void {
    requireSameKind(this.seed, state.seed);
    if (this.seed !== null) this.seed = requireInteger('DistributedSampler seed', state.seed, 0);
    super.loadStateDict(state);
  }
}

/** Orders are lists of 32-bit numbers. */
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

/** A position in a shuffled order means nothing in the natural one. */
function requireSameKind(mine: number | null, saved: unknown): void {
  if ((mine === null) === (saved === null)) return;
  const name = (seed: unknown): string =>
    seed === null ? 'the natural order' : 'a shuffled order';
  throw new DsError({
    code: 'DS_CHECKPOINT',
    op: 'Sampler.loadStateDict',
    expected: `a position in ${name(mine)}`,
    got: `one in ${name(saved)}`,
    hint: 'Resume with the same shuffle, or without the loader state.',
  });
}
