// DataLoader: serves a dataset in batches, in an order that a seed decides and a checkpoint can
// resume.
import { types } from 'node:util';

import type { JsonObject } from '../../types/json.js';
import { DsError } from '../errors.js';
import type { Device } from '../runtime/device.js';
import { device as findDevice } from '../runtime/device.js';
import { type Batched, collate as defaultCollate } from './collate.js';
import { naturalOrder, shuffledOrder } from './order.js';

/** Samples by number. get() may return a promise; such a dataset is iterated with `for await`. */
export interface Dataset<Sample> {
  readonly length: number;
  get(index: number): Sample | Promise<Sample>;
}

export interface DataLoaderOptions<Sample, Batch> {
  /** Samples per batch. Default 1. */
  batchSize?: number;
  /** Where batches are put. Default "cpu". */
  device?: Device | string;
  /** Visits the samples of every epoch in a new random order. Default true. */
  shuffle?: boolean;
  /** Decides those orders. Default 0. */
  seed?: number;
  /** Leaves out a last batch that is not full. Default false. */
  dropLast?: boolean;
  /** Makes a batch of samples. Default: stacks tensors, typed arrays and numbers. */
  collate?: (samples: Sample[], device: Device) => Batch;
}

/**
 * Every iteration serves the rest of the current epoch and then moves on to the next. The order is
 * a function of seed and epoch, so a loader that load()s a state goes on with the very next sample.
 * The caller owns the tensors of a batch. There is one position: do not iterate twice at a time.
 */
export class DataLoader<Sample = unknown, Batch = Batched<Sample>> {
  readonly batchSize: number;
  readonly device: Device;
  private readonly shuffle: boolean;
  private readonly dropLast: boolean;
  private readonly collate: (samples: Sample[], device: Device) => Batch;
  private seed: number;
  private epoch = 0;
  /** Samples of this epoch that have been served. */
  private served = 0;

  /**
   * Throws DS_DATA when the dataset does not fill a batch, DS_ARGUMENT for a bad batch size or
   * seed.
   */
  constructor(
    private readonly dataset: Dataset<Sample>,
    options: DataLoaderOptions<Sample, Batch> = {},
  ) {
    this.batchSize = requireInteger('batchSize', options.batchSize ?? 1, 1);
    this.seed = requireInteger('seed', options.seed ?? 0, 0);
    this.device = findDevice(options.device ?? 'cpu');
    this.shuffle = options.shuffle ?? true;
    this.dropLast = options.dropLast ?? false;
    this.collate = options.collate ?? (defaultCollate as unknown as typeof this.collate);
    if (this.length > 0) return;
    throw new DsError({
      code: 'DS_DATA',
      op: 'DataLoader',
      expected: `at least ${this.dropLast ? this.batchSize : 1} samples`,
      got: `${dataset.length}`,
      hint: this.dropLast ? 'Use a smaller batchSize, or dropLast: false.' : '',
    });
  }

  /** Batches per epoch. */
  get length(): number {
    const batches = this.dataset.length / this.batchSize;
    return this.dropLast ? Math.floor(batches) : Math.ceil(batches);
  }

  *[Symbol.iterator](): Generator<Batch> {
    for (const samples of this.rest()) {
      if (samples.some(types.isPromise)) {
        throw new DsError({
          code: 'DS_DATA',
          op: 'DataLoader',
          expected: 'samples at once',
          got: 'a dataset whose get() returns promises',
          hint: 'Iterate with `for await`.',
        });
      }
      yield this.collate(samples as Sample[], this.device);
    }
  }

  async *[Symbol.asyncIterator](): AsyncGenerator<Batch> {
    for (const samples of this.rest()) {
      yield this.collate(await Promise.all(samples), this.device);
    }
  }

  /** The samples of every batch that is left of this epoch; counts each when it is handed out. */
  private *rest(): Generator<(Sample | Promise<Sample>)[]> {
    const { length } = this.dataset;
    const order = this.shuffle
      ? shuffledOrder(length, this.seed, this.epoch)
      : naturalOrder(length);
    const end = this.dropLast ? this.length * this.batchSize : length;
    while (this.served < end) {
      const indices = order.subarray(this.served, Math.min(this.served + this.batchSize, end));
      const samples = Array.from(indices, (index) => this.dataset.get(index));
      this.served += indices.length;
      yield samples;
    }
    this.epoch++;
    this.served = 0;
  }

  /** The position, for checkpoints. */
  state(): JsonObject {
    const { seed, epoch, served, dataset } = this;
    return { seed, epoch, served, samples: dataset.length };
  }

  /** Goes on where `state` was taken. Throws DS_CHECKPOINT when that was over another dataset. */
  load(state: JsonObject): void {
    const { seed, epoch, served, samples } = state;
    if (samples !== this.dataset.length) {
      throw new DsError({
        code: 'DS_CHECKPOINT',
        op: 'DataLoader.load',
        expected: `the position in a dataset of ${this.dataset.length} samples`,
        got: `one of ${JSON.stringify(samples)}`,
        hint: 'Resume with the same data and sequence length, or without the loader state.',
      });
    }
    this.seed = requireInteger('seed', seed, 0);
    this.epoch = requireInteger('epoch', epoch, 0);
    this.served = requireInteger('served', served, 0);
  }
}

/** Batches without end: epoch after epoch, from the loader's position on. */
export async function* repeat<Batch>(loader: AsyncIterable<Batch>): AsyncGenerator<Batch, never> {
  while (true) yield* loader;
}

function requireInteger(name: string, value: unknown, least: number): number {
  if (Number.isSafeInteger(value) && (value as number) >= least) return value as number;
  throw new DsError({
    code: 'DS_ARGUMENT',
    op: `DataLoader ${name}`,
    expected: `an integer of at least ${least}`,
    got: JSON.stringify(value) ?? String(value),
  });
}
