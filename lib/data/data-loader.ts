// DataLoader: makes batches of a dataset. A seed determines the order; a checkpoint stores the
// position.
import type { JsonObject } from '../../types/json.js';
import { DsError } from '../errors.js';
import { type Device, device as findDevice } from '../runtime/device.js';
import { waitForEventLoop } from '../runtime/event-loop.js';
import { formatValue } from '../runtime/format-value.js';
import { argumentError, dataError, valueError } from '../runtime/input-errors.js';
import { namesOf, readOptions } from '../runtime/options.js';
import { requireInteger } from '../runtime/require-number.js';
import { requireType } from '../runtime/require-type.js';
import {
  type BatchMaker,
  InProcessMaker,
  type PassPlan,
  WorkerMaker,
  type WorkerOptions,
} from './batch-maker.js';
import type { Batched } from './collate.js';
import { type Dataset, type DatasetSource, requireServable } from './dataset.js';
import { requireState } from './require-state.js';
import { RandomSampler, type Sampler, SequentialSampler } from './sampler.js';
import type { ThreadOptions } from './worker-protocol.js';

/** Options of a loader's worker threads. */
export interface WorkerThreadOptions {
  /** Number of threads that read and stack samples. Default: 0; the calling thread does it. */
  numWorkers?: number;
  /** Number of batches that each worker makes in advance. Default: 2. */
  prefetchFactor?: number;
  /** Milliseconds to wait for a batch of a worker before an error. Default: 120000. */
  workerTimeoutMs?: number;
  /** Whether the workers stay alive from one pass to the next, until close(). Default: false. */
  persistentWorkers?: boolean;
  /** Options for starting the worker threads. */
  workerThread?: ThreadOptions;
}

/** Options of a DataLoader. */
export interface DataLoaderOptions<Sample, Batch> extends WorkerThreadOptions {
  /** Samples per batch. Default: 1. */
  batchSize?: number;
  /** Device of the batches. Default: "cpu". */
  device?: Device | string;
  /** Whether every epoch has a new random order. Default: true. */
  shuffle?: boolean;
  /** Seed of the random orders. Default: 0. */
  seed?: number;
  /** Chooses the samples instead of `shuffle` and `seed`. */
  sampler?: Sampler;
  /** Whether a last batch that is not full is dropped. Default: false. */
  dropLast?: boolean;
  /** Combines samples into a batch. Default: stacks numbers, typed arrays and tensors. */
  collate?: (samples: Sample[], device: Device) => Batch;
}

/**
 * The position of a loader. `served`: number of samples of the epoch that the loaders of all ranks
 * have returned.
 */
interface Position {
  epoch: number;
  served: number;
}

/**
 * Makes batches of a dataset. Each iteration returns the remaining batches of the current epoch,
 * and then goes to the next epoch.
 *
 * - The order depends on seed, epoch and rank.
 * - After loadStateDict(), the loader continues with the next sample, even if the number of ranks
 *   has changed.
 * - The caller owns the tensors of a batch.
 * - A loader has one position, so a new iteration replaces the current one.
 *
 * With workers, order and batches are the same. Each worker builds the dataset from Dataset.source,
 * which must exist. A collate function runs on the calling thread. `for` blocks the thread until a
 * batch arrives. `for await` does not block: it runs the event loop between batches. Threads end
 * with the iteration.
 */
export class DataLoader<Sample = unknown, Batch = Batched<Sample>> {
  /** Samples per batch, at least 1. The last batch of an epoch may have fewer. */
  readonly batchSize: number;
  /** Device of the batches. */
  readonly device: Device;
  /** Chooses the samples and their order. */
  readonly sampler: Sampler;
  private readonly dropLast: boolean;
  private readonly maker: BatchMaker<Uint32Array, Batch>;
  private position: Position = { epoch: 0, served: 0 };
  /** The current iteration, or null. */
  private pass: Pass | null = null;

  /**
   * Throws DS_DATA if the dataset does not fill a batch. Throws DS_ARGUMENT if `dataset` is not a
   * dataset, an option is unknown or invalid, or workers cannot build the dataset.
   */
  constructor(
    private readonly dataset: Dataset<Sample>,
    given: DataLoaderOptions<Sample, Batch> = {},
  ) {
    const options = readOptions('DataLoader', given, namesOf.DataLoaderOptions);
    requireServable(dataset);
    this.batchSize = requireInteger('DataLoader batchSize', options.batchSize ?? 1, 1);
    this.device = findDevice(options.device ?? 'cpu');
    this.dropLast = options.dropLast ?? false;
    const { length } = dataset;
    const { shuffle = true } = options;
    this.sampler =
      requireSampler(options.sampler ?? null) ??
      (shuffle ? new RandomSampler(length, options) : new SequentialSampler(length));
    if (this.length < 1) throw this.tooFewSamplesError();
    this.maker = createMaker(dataset, this.device, options);
  }

  /** Number of batches of a whole epoch on this rank. */
  get length(): number {
    return this.countBatches(this.sampler.length);
  }

  /** The current epoch, from 0. */
  get epoch(): number {
    return this.sampler.epoch;
  }

  /**
   * Goes to the start of an epoch. Does nothing if it is the current epoch. Throws DS_ARGUMENT
   * unless `epoch` is a whole number of at least 0.
   */
  setEpoch(epoch: number): void {
    this.sampler.setEpoch(epoch);
  }

  /** Yields batches. If a worker fails, ends or stalls, throws DS_DATA with worker and sample. */
  *[Symbol.iterator](): Generator<Batch> {
    const pass = new Pass();
    try {
      while (this.advance(pass)) {
        const batch = this.maker.next();
        this.countBatch(pass);
        yield batch;
      }
    } finally {
      this.endPass(pass);
    }
  }

  async *[Symbol.asyncIterator](): AsyncGenerator<Batch> {
    const pass = new Pass();
    try {
      while (this.advance(pass)) {
        const batch = await this.maker.nextAsync();
        this.countBatch(pass);
        yield batch;
        await waitForEventLoop();
      }
    } finally {
      this.endPass(pass);
    }
  }

  /** Returns the position, for checkpoints. It is the same on every rank. */
  stateDict(): JsonObject {
    this.followSampler();
    const { served } = this.position;
    return { ...this.sampler.stateDict(), served, samples: this.dataset.length };
  }

  /**
   * Continues at the position of `state`. A running iteration continues there with its next batch.
   * Throws DS_CHECKPOINT if the state belongs to another dataset or another kind of order.
   */
  loadStateDict(state: JsonObject): void {
    requireState('DataLoader', state);
    const { served, samples } = state;
    if (samples !== this.dataset.length) {
      throw new DsError({
        code: 'DS_CHECKPOINT',
        op: 'DataLoader.loadStateDict',
        expected: `the position in a dataset of ${this.dataset.length} samples`,
        got: `the position in a dataset of ${JSON.stringify(samples)} samples`,
        hint: 'Resume with the same data and sequence length, or without the loader state.',
      });
    }
    requireInteger('DataLoader served', served, 0);
    this.sampler.loadStateDict(state);
    this.position = { epoch: this.sampler.epoch, served: served as number };
    this.skipFinishedEpoch();
  }

  /** Ends worker threads and frees staging memory. The loader can still be iterated. */
  async close(): Promise<void> {
    this.pass = null;
    await this.maker.close();
  }

  [Symbol.asyncDispose](): Promise<void> {
    return this.close();
  }

  /** Returns whether the epoch has another batch. If not, goes to the next epoch. */
  private advance(pass: Pass): boolean {
    if (pass.position === null) this.pass = pass;
    else if (this.pass !== pass) throw iterationReplacedError();
    this.followSampler();
    if (pass.position !== this.position) this.startPass(pass);
    if (pass.next < pass.batches) return true;
    this.goToEpoch(this.position.epoch + 1);
    return false;
  }

  private startPass(pass: Pass): void {
    const order = this.skipFinishedEpoch();
    const batches = this.countBatches(order.length);
    if (batches === 0) throw this.noMoreEpochsError();
    pass.begin(this.position, order, batches, this.batchSize);
    this.maker.begin(pass);
  }

  /**
   * Returns the remaining samples of the epoch. At the end of the epoch, goes to the next epoch and
   * returns its samples. The result is empty at the end of the sampler.
   */
  private skipFinishedEpoch(): Uint32Array {
    const order = readOrder(this.sampler, this.position.served, this.dataset);
    if (this.countBatches(order.length) > 0 || this.position.served === 0) return order;
    this.goToEpoch(this.position.epoch + 1);
    return readOrder(this.sampler, 0, this.dataset);
  }

  private countBatch(pass: Pass): void {
    if (this.pass !== pass || pass.position !== this.position) return;
    this.position.served += pass.work(pass.next++).length * this.sampler.worldSize;
  }

  private endPass(pass: Pass): void {
    if (this.pass !== pass) return;
    this.pass = null;
    this.maker.end();
  }

  private goToEpoch(epoch: number): void {
    this.sampler.setEpoch(epoch);
    this.position = { epoch, served: 0 };
  }

  /** Goes to the sampler's epoch if the program has set another one. */
  private followSampler(): void {
    const { epoch } = this.sampler;
    if (epoch !== this.position.epoch) this.position = { epoch, served: 0 };
  }

  private countBatches(samples: number): number {
    const batches = samples / this.batchSize;
    return this.dropLast ? Math.floor(batches) : Math.ceil(batches);
  }

  private noMoreEpochsError(): DsError {
    return dataError(
      `DataLoader, epoch ${this.epoch}`,
      'an epoch with samples',
      `the end of the ${this.sampler.constructor.name}`,
      'Give the sampler more epochs, or train for fewer.',
    );
  }

  private tooFewSamplesError(): DsError {
    return dataError(
      'DataLoader',
      `at least ${this.dropLast ? this.batchSize : 1} samples`,
      `${this.sampler.length}`,
      this.dropLast ? 'Use a smaller batchSize, or dropLast: false.' : '',
    );
  }
}

/** An iteration over a loader: its samples and its progress. */
class Pass implements PassPlan<Uint32Array> {
  /**
   * Start position; null before the start. If the loader has another position, the pass restarts.
   */
  position: Position | null = null;
  next = 0;
  batches = 0;
  private order = new Uint32Array(0);
  private batchSize = 0;

  begin(position: Position, order: Uint32Array, batches: number, batchSize: number): void {
    Object.assign(this, { position, order, batches, batchSize, next: 0 });
  }

  /** Returns the indices of the samples of a batch. */
  work(batch: number): Uint32Array {
    return this.order.slice(batch * this.batchSize, (batch + 1) * this.batchSize);
  }
}

/**
 * Returns the samples that a sampler chooses; it may return a list or an iterable. Throws DS_DATA
 * if an index is invalid.
 */
function readOrder(sampler: Sampler, served: number, { length }: { length: number }): Uint32Array {
  const order: unknown = sampler.order(served);
  const name = `${sampler.constructor.name}.order`;
  if (typeof order !== 'object' || order === null || !(Symbol.iterator in order)) {
    throw dataError(name, 'a list or an iterable of sample indices', formatValue(order));
  }
  const numbers = order instanceof Uint32Array ? order : [...(order as Iterable<number>)];
  const isSample = (index: number): boolean =>
    Number.isSafeInteger(index) && index >= 0 && index < length;
  const invalid = numbers.findIndex((index) => !isSample(index));
  if (invalid < 0) return numbers instanceof Uint32Array ? numbers : Uint32Array.from(numbers);
  const hint = 'Give the sampler the length of the dataset.';
  const got = `${formatValue(numbers[invalid])} at ${invalid}`;
  throw dataError(name, `sample indices from 0 to ${length - 1}`, got, hint);
}

function createMaker<Sample, Batch>(
  dataset: Dataset<Sample>,
  device: Device,
  options: DataLoaderOptions<Sample, Batch>,
): BatchMaker<Uint32Array, Batch> {
  const parts = { device, collate: requireCollate('DataLoader', options.collate) };
  const workers = readWorkerOptions(dataset, options);
  return workers ? new WorkerMaker(parts, workers) : new InProcessMaker(dataset, parts);
}

/**
 * Returns the checked options of worker threads; null without workers. Throws DS_ARGUMENT if the
 * dataset has no source for workers.
 */
export function readWorkerOptions(
  { source }: { source?: DatasetSource | undefined },
  options: WorkerThreadOptions,
): WorkerOptions | null {
  const workers = requireInteger('DataLoader numWorkers', options.numWorkers ?? 0, 0);
  if (workers === 0) return null;
  if (source) {
    return {
      workers,
      source,
      timeoutMs: requireTimeout(options.workerTimeoutMs ?? 120_000),
      prefetch: requireInteger('DataLoader prefetchFactor', options.prefetchFactor ?? 2, 1),
      persistent: requireType(
        'DataLoader persistentWorkers',
        options.persistentWorkers ?? false,
        'boolean',
      ),
      thread: options.workerThread ?? {},
    };
  }
  throw argumentError(
    'DataLoader numWorkers',
    'a dataset that a worker thread can build',
    'a dataset without `source`',
    "A worker thread cannot receive functions. Pass data.workerDataset({ module: require.resolve('./my-dataset.js'), export: 'build', args: [...] }), or numWorkers 0.",
  );
}

/** Returns the collate function; null without one. Throws DS_ARGUMENT if it is not a function. */
export function requireCollate<Collate>(op: string, collate: Collate | undefined): Collate | null {
  if (collate !== undefined && collate !== null) requireType(`${op} collate`, collate, 'function');
  return collate ?? null;
}

/** Names of the methods that a loader calls. */
const SAMPLER_METHODS = ['order', 'setEpoch', 'stateDict', 'loadStateDict'] as const;

function requireSampler(sampler: Sampler | null): Sampler | null {
  if (SAMPLER_METHODS.every((name) => sampler === null || typeof sampler[name] === 'function')) {
    return sampler;
  }
  throw valueError(
    'DataLoader sampler',
    'a sampler',
    sampler,
    'Extend data.Sampler with length and order(served), which returns sample indices in order.',
  );
}

function requireTimeout(milliseconds: number): number {
  if (milliseconds > 0) return milliseconds;
  throw argumentError(
    'DataLoader workerTimeoutMs',
    'a positive number of milliseconds',
    String(milliseconds),
  );
}

/** Returns the error of an iteration that continues after a later iteration has replaced it. */
export function iterationReplacedError(): DsError {
  return dataError(
    'DataLoader',
    'one iteration at a time',
    'an iteration that was closed, or replaced by a later iteration',
    'Create one loader per iteration.',
  );
}
