// IterableLoader: serves a stream of samples as batches, divided over ranks and workers, from a
// position that a checkpoint can resume.

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

/** Options of an IterableLoader. `rank` and `worldSize` count data ranks. */
export interface IterableLoaderOptions<Sample, Batch> extends WorkerThreadOptions {
  /** Samples per batch. Default: 1. */
  batchSize?: number;
  /** Device of the batches. Default: "cpu". */
  device?: Device | string;
  /** Number of this rank. Default: 0. */
  rank?: number;
  /** Number of ranks that share the samples. Default: 1. */
  worldSize?: number;
  /** Drops the last samples if they do not fill a batch of every rank. Default: false. */
  dropLast?: boolean;
  /** Combines samples into a batch. Default: stacks tensors, typed arrays and numbers. */
  collate?: (samples: Sample[], device: Device) => Batch;
}

/**
 * The position of a loader. `served`: samples of the epoch that the loaders of all ranks have
 * returned.
 */
interface Position {
  readonly epoch: number;
  served: number;
}

/**
 * Loads batches of an iterable dataset. Every iteration serves the rest of the current epoch and
 * then moves on to the next.
 *
 * - N ranks have batches of B samples. Batch g of all ranks has samples [g B N, (g + 1) B N). Rank
 *   r has the samples with number modulo N = r. With W workers, worker g modulo W makes it.
 * - So the order is the dataset's, for any number of ranks and workers. A loader that loads a state
 *   continues with the next sample.
 * - The last round may be incomplete. With dropLast, all ranks drop it. Otherwise it is repeated
 *   from its beginning until each rank has a full batch.
 * - Every rank and worker reads all samples and keeps its own.
 *
 * The caller owns the tensors of a batch. `for` blocks until a batch arrives; without workers it
 * needs synchronous samples. `for await` does not block. A loader has one position: a new iteration
 * takes it over from the current one. Source: torch.utils.data.IterableDataset.
 */
export class IterableLoader<Sample = unknown, Batch = Batched<Sample>> {
  /** Samples per batch, at least 1; the last batch of an epoch may have fewer. */
  readonly batchSize: number;
  /** Device of the batches. */
  readonly device: Device;
  private readonly roundOptions: RoundOptions;
  private readonly maker: BatchMaker<Round, Batch | null>;
  private position: Position = { epoch: 0, served: 0 };
  /** The current iteration. */
  private pass: object | null = null;

  /**
   * Throws DS_ARGUMENT for an object that is not a dataset, an invalid number, an unknown option,
   * and workers that cannot build the dataset.
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
   * Goes to the start of an epoch, unless it is the current one. Throws DS_ARGUMENT unless the
   * epoch is a whole number from 0.
   */
  setEpoch(epoch: number): void {
    requireInteger('IterableLoader.setEpoch', epoch, 0);
    if (epoch !== this.epoch) this.position = { epoch, served: 0 };
  }

  /**
   * Yields batches. Throws DS_DATA with sample, epoch and worker if a worker fails, ends or stalls,
   * and if an epoch has no batch.
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

  /** Ends worker threads and frees staging memory; the loader can still be iterated. */
  async close(): Promise<void> {
    this.pass = null;
    await this.maker.close();
  }

  [Symbol.asyncDispose](): Promise<void> {
    return this.close();
  }

  /**
   * Begins the pass at the loader's position, and again if the program has changed that position.
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

  /** Number of samples in a batch of every rank. */
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
   * Moves to the next epoch and returns whether the iteration has ended. It continues if the
   * position was the end of the epoch, or has changed. Throws DS_DATA for an epoch without a batch.
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

/** One iteration: its start, and the number of batches since then. */
interface Pass {
  position: Position | null;
  batches: number;
}

/** Reads the samples on the calling thread. */
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

  /** Starts with a new reader: an abandoned pass may still wait for a sample of the old one. */
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
