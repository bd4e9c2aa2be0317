// IterableLoader: makes batches of a dataset without a known length. Ranks and workers divide the
// samples; a checkpoint stores the position.

import type { JsonObject } from '../../types/json.js';
import { DsError } from '../errors.js';
import { type Device, device as findDevice } from '../runtime/device.js';
import { waitForEventLoop } from '../runtime/event-loop.js';
import { dataError } from '../runtime/input-errors.js';
import { namesOf, readOptions } from '../runtime/options.js';
import { requireInteger } from '../runtime/require-number.js';
import { required } from '../runtime/required.js';
import {
  type BatchMaker,
  type MakerOptions,
  type PassPlan,
  SampleCombiner,
  WorkerMaker,
} from './batch-maker.js';
import type { Batched } from './collate.js';
import {
  iterationReplacedError,
  readWorkerOptions,
  requireCollate,
  type WorkerThreadOptions,
} from './data-loader.js';
import { type IterableDataset, requireIterableDataset } from './iterable-dataset.js';
import { requireState } from './require-state.js';
import { ITERATE, RoundReader } from './round-reader.js';
import { requireRank } from './sampler.js';
import type { Round, RoundOptions } from './worker-protocol.js';

/** Options of an IterableLoader. `rank` and `worldSize` count data ranks only. */
export interface IterableLoaderOptions<Sample, Batch> extends WorkerThreadOptions {
  /** Samples per batch. Default: 1. */
  batchSize?: number;
  /** Device of the batches. Default: "cpu". */
  device?: Device | string;
  /** Index of this rank. Default: 0. */
  rank?: number;
  /** Number of ranks that divide the samples. Default: 1. */
  worldSize?: number;
  /**
   * Whether the last samples are dropped if they do not fill a batch of every rank. Default: false.
   */
  dropLast?: boolean;
  /** Combines samples into a batch. Default: stacks numbers, typed arrays and tensors. */
  collate?: (samples: Sample[], device: Device) => Batch;
}

/**
 * The position of a loader. `served`: number of samples of the epoch that the loaders of all ranks
 * have returned.
 */
interface Position {
  readonly epoch: number;
  served: number;
}

/**
 * Makes batches of an iterable dataset. Each iteration returns the remaining batches of the current
 * epoch, and then goes to the next epoch.
 *
 * - A round has one batch of B samples for each of N ranks. Round g has the samples from g B N to
 *   (g + 1) B N - 1. Rank r takes each sample with index modulo N = r. With W workers, worker g
 *   modulo W makes its batch.
 * - So the order is that of the dataset, for any number of ranks and workers. After
 *   loadStateDict(), the loader continues with the next sample.
 * - If the last round is incomplete, all ranks drop it with dropLast. Otherwise its samples are
 *   repeated from its start until each rank has as many as the others.
 * - Every rank and every worker iterates all samples and keeps its own.
 *
 * The caller owns the tensors of a batch. `for` blocks the thread until a batch arrives; without
 * workers it needs samples that are not promises. `for await` does not block. A loader has one
 * position, so a new iteration replaces the current one. Source: torch.utils.data.IterableDataset.
 */
export class IterableLoader<Sample = unknown, Batch = Batched<Sample>> {
  /** Samples per batch, at least 1. The last batch of an epoch may have fewer. */
  readonly batchSize: number;
  /** Device of the batches. */
  readonly device: Device;
  private readonly roundOptions: RoundOptions;
  private readonly maker: BatchMaker<Round, Batch | null>;
  private position: Position = { epoch: 0, served: 0 };
  /** The current iteration, or null. */
  private pass: object | null = null;

  /**
   * Throws DS_ARGUMENT if `dataset` has no iterate(), an option is unknown or invalid, or workers
   * cannot build the dataset.
   */
  constructor(dataset: IterableDataset<Sample>, given: IterableLoaderOptions<Sample, Batch> = {}) {
    const op = 'IterableLoader';
    const options = readOptions(op, given, namesOf.IterableLoaderOptions);
    requireIterableDataset(dataset);
    const { batchSize = 1, rank = 0, worldSize = 1, dropLast = false } = options;
    this.roundOptions = {
      batchSize: requireInteger(`${op} batchSize`, batchSize, 1),
      rank: requireInteger(`${op} rank`, rank, 0),
      worldSize: requireInteger(`${op} worldSize`, worldSize, 1),
      dropLast,
    };
    requireRank(op, rank, worldSize);
    this.batchSize = batchSize;
    this.device = findDevice(options.device ?? 'cpu');
    const parts = { device: this.device, collate: requireCollate(op, options.collate) };
    const workers = readWorkerOptions(dataset, options);
    this.maker = workers ? new WorkerMaker(parts, workers) : new RoundMaker(dataset, parts);
  }

  /** The current epoch, from 0. */
  get epoch(): number {
    return this.position.epoch;
  }

  /**
   * Goes to the start of an epoch. Does nothing if it is the current epoch. Throws DS_ARGUMENT
   * unless `epoch` is a whole number of at least 0.
   */
  setEpoch(epoch: number): void {
    requireInteger('IterableLoader.setEpoch', epoch, 0);
    if (epoch !== this.epoch) this.position = { epoch, served: 0 };
  }

  /**
   * Yields batches. Throws DS_DATA if a worker fails, ends or stalls, and if an epoch has no batch.
   * The error names sample, epoch and worker.
   */
  *[Symbol.iterator](): Generator<Batch> {
    const pass = { position: null, batches: 0 };
    try {
      while (true) {
        this.beginPass(pass);
        const batch = this.maker.next();
        if (batch !== null) yield this.countBatch(pass, batch);
        else if (this.endEpoch(pass)) return;
      }
    } finally {
      this.endPass(pass);
    }
  }

  async *[Symbol.asyncIterator](): AsyncGenerator<Batch> {
    const pass = { position: null, batches: 0 };
    try {
      while (true) {
        this.beginPass(pass);
        const batch = await this.maker.nextAsync();
        if (batch !== null) yield this.countBatch(pass, batch);
        else if (this.endEpoch(pass)) return;
        await waitForEventLoop();
      }
    } finally {
      this.endPass(pass);
    }
  }

  /** Returns the position, for checkpoints. It is the same on every rank. */
  stateDict(): JsonObject {
    return { ...this.position, samples: null };
  }

  /**
   * Continues at the position of `state`. A running iteration continues there with its next batch.
   * Throws DS_CHECKPOINT if the state belongs to another kind of loader.
   */
  loadStateDict(state: JsonObject): void {
    requireState('IterableLoader', state);
    const { epoch, served, samples } = state;
    if (samples !== null) {
      throw new DsError({
        code: 'DS_CHECKPOINT',
        op: 'IterableLoader.loadStateDict',
        expected: 'a position in data without a length',
        got: `the position in a dataset of ${JSON.stringify(samples)} samples`,
        hint: 'Resume with the same data, or without the loader state.',
      });
    }
    this.position = {
      epoch: requireInteger('IterableLoader epoch', epoch, 0),
      served: requireInteger('IterableLoader served', served, 0),
    };
  }

  /** Ends worker threads and frees staging memory. The loader can still be iterated. */
  async close(): Promise<void> {
    this.pass = null;
    await this.maker.close();
  }

  [Symbol.asyncDispose](): Promise<void> {
    return this.close();
  }

  /**
   * Starts the pass at the loader's position. Starts it again if the program has changed the
   * position.
   */
  private beginPass(pass: Pass): void {
    if (pass.position === null) this.pass = pass;
    else if (this.pass !== pass) throw iterationReplacedError();
    const { position } = this;
    if (pass.position === position) return;
    Object.assign(pass, { position, batches: 0 });
    const { epoch, served } = position;
    const work = (i: number): Round => ({
      ...this.roundOptions,
      epoch,
      start: served + i * this.roundSize,
    });
    this.maker.begin({ batches: Number.POSITIVE_INFINITY, work });
  }

  /** Number of samples in a round: a batch of every rank. */
  private get roundSize(): number {
    return this.roundOptions.batchSize * this.roundOptions.worldSize;
  }

  private countBatch(pass: Pass, batch: Batch): Batch {
    pass.batches++;
    if (this.pass === pass && pass.position === this.position)
      this.position.served += this.roundSize;
    return batch;
  }

  /**
   * Is called when the epoch has no further batch. Goes to the next epoch, and returns whether the
   * iteration ends. If the iteration has yielded no batch, or the position has changed, it
   * continues. Throws DS_DATA if the whole epoch has no batch.
   */
  private endEpoch({ position, batches }: Pass): boolean {
    if (position !== this.position) return false;
    const { epoch, served } = this.position;
    if (served === 0) {
      throw dataError(
        `IterableLoader, epoch ${epoch}`,
        this.roundOptions.dropLast ? `${this.roundSize} samples: a batch for each rank` : 'samples',
        this.roundOptions.dropLast ? 'fewer samples' : 'no samples',
        this.roundOptions.dropLast ? 'Use a smaller batchSize, or dropLast: false.' : '',
      );
    }
    this.position = { epoch: epoch + 1, served: 0 };
    return batches > 0;
  }

  private endPass(pass: object): void {
    if (this.pass !== pass) return;
    this.pass = null;
    this.maker.end();
  }
}

/** An iteration: its start position, and the number of batches since then. */
interface Pass {
  position: Position | null;
  batches: number;
}

/** Makes batches on the calling thread. */
class RoundMaker<Sample, Batch> implements BatchMaker<Round, Batch | null> {
  private readonly combiner: SampleCombiner<Sample, Batch>;
  private reader: RoundReader<Sample>;
  private plan: PassPlan<Round> | null = null;
  private nextBatch = 0;

  constructor(
    private readonly dataset: IterableDataset<Sample>,
    options: MakerOptions<Sample, Batch>,
  ) {
    this.combiner = new SampleCombiner(options);
    this.reader = new RoundReader(dataset);
  }

  /**
   * Creates a new reader, because a replaced iteration may still wait for a sample of the old
   * reader.
   */
  begin(plan: PassPlan<Round>): void {
    this.reader.close();
    this.reader = new RoundReader(this.dataset);
    this.plan = plan;
    this.nextBatch = 0;
  }

  next(): Batch | null {
    const round = this.nextRound();
    let samples: Sample[] | null;
    try {
      samples = this.reader.read(round);
    } catch (error) {
      throw sampleError(error, this.reader.nextSample, round);
    }
    return samples && this.combiner.combine(samples);
  }

  async nextAsync(): Promise<Batch | null> {
    const { reader } = this;
    const round = this.nextRound();
    let samples: Sample[] | null;
    try {
      samples = await reader.readAsync(round);
    } catch (error) {
      throw sampleError(error, reader.nextSample, round);
    }
    return samples && this.combiner.combine(samples);
  }

  end(): void {
    this.reader.close();
  }

  async close(): Promise<void> {
    this.reader.close();
    this.combiner.dispose();
  }

  private nextRound(): Round {
    return required(this.plan).work(this.nextBatch++);
  }
}

function sampleError(error: unknown, sample: number, { epoch }: Round): DsError {
  if (error instanceof DsError && error.op === 'DataLoader') return error;
  const { name, message } = (error ?? {}) as Error;
  const op = `IterableLoader, sample ${sample} of epoch ${epoch}`;
  if (error instanceof DsError && error.op === ITERATE) {
    return dataError(op, error.expected, error.got, error.hint);
  }
  return new DsError({
    code: 'DS_DATA',
    op,
    expected: 'samples',
    got: message === undefined ? String(error) : `${name}: ${message}`,
    cause: error,
  });
}
