// Makes the batches of a pass over the data, on the calling thread or in advance on worker threads.

import { types } from 'node:util';
import type { Device } from '../runtime/device.js';
import { finalizers } from '../runtime/finalizers.js';
import { required } from '../runtime/required.js';
import { collateWith, uploadBatch } from './collate.js';
import { asynchronousError, type Dataset } from './dataset.js';
import { createUploader, type Uploader } from './upload.js';
import { type PoolOptions, WorkerPool } from './worker-pool.js';
import type { Reply, Work } from './worker-protocol.js';

/**
 * The batches of a pass: for each batch, the indices of its samples, or a round of a stream (Work).
 */
export interface PassPlan<Work> {
  /** Number of batches. Infinity for a stream without a known length. */
  readonly batches: number;
  work(batch: number): Work;
}

/**
 * Makes the batches of one pass at a time, in order; the loaders call it. For a stream without a
 * known length, Batch includes null, which marks the end.
 */
export interface BatchMaker<Work, Batch> {
  /** Starts a pass and ends the current one. */
  begin(plan: PassPlan<Work>): void;
  /** Returns the next batch of the pass. Throws DS_DATA, and the errors of the dataset. */
  next(): Batch;
  nextAsync(): Promise<Batch>;
  /** Ends the pass, even if batches remain. */
  end(): void;
  /** Ends threads and frees staging memory. A later begin() creates both again. */
  close(): Promise<void>;
}

/** Options of a batch maker. */
export interface MakerOptions<Sample, Batch> {
  device: Device;
  /** Combines samples into a batch; null: the default, which stacks them. */
  collate: ((samples: Sample[], device: Device) => Batch) | null;
}

/** Combines samples into a batch on the calling thread. */
export class SampleCombiner<Sample, Batch> {
  private readonly uploader: Uploader;

  constructor(private readonly options: MakerOptions<Sample, Batch>) {
    this.uploader = createUploader(options.device);
  }

  combine(samples: Sample[]): Batch {
    const { collate, device } = this.options;
    if (collate) return collate(samples, device);
    return collateWith(samples, this.uploader, device) as Batch;
  }

  /** Combines samples without waiting. Throws DS_DATA if a sample or the batch is a promise. */
  combineNow(samples: (Sample | Promise<Sample>)[]): Batch {
    if (!samples.some(types.isPromise))
      return requireSynchronous(this.combine(samples as Sample[]));
    for (const sample of samples) if (types.isPromise(sample)) sample.catch(() => {});
    throw asynchronousError('a dataset of promises');
  }

  dispose(): void {
    this.uploader.dispose();
  }
}

/** Returns `batch`. Throws DS_DATA if it is a promise. */
function requireSynchronous<Batch>(batch: Batch): Batch {
  if (!types.isPromise(batch)) return batch;
  batch.catch(() => {});
  throw asynchronousError('a collate function that takes time');
}

/** Makes batches on the calling thread. */
export class InProcessMaker<Sample, Batch> implements BatchMaker<Uint32Array, Batch> {
  private readonly combiner: SampleCombiner<Sample, Batch>;
  private plan: PassPlan<Uint32Array> | null = null;
  private nextBatch = 0;

  constructor(
    private readonly dataset: Dataset<Sample>,
    private readonly options: MakerOptions<Sample, Batch>,
  ) {
    this.combiner = new SampleCombiner(options);
  }

  begin(plan: PassPlan<Uint32Array>): void {
    this.plan = plan;
    this.nextBatch = 0;
  }

  next(): Batch {
    return this.combineByDataset() ?? this.combiner.combineNow(this.fetchSamples());
  }

  async nextAsync(): Promise<Batch> {
    return this.combineByDataset() ?? this.combiner.combine(await Promise.all(this.fetchSamples()));
  }

  end(): void {}

  async close(): Promise<void> {
    this.combiner.dispose();
  }

  /**
   * Returns the next batch as the dataset's batch() makes it. Returns null if the dataset has no
   * batch() or the loader has a collate function.
   */
  private combineByDataset(): Batch | null {
    const { collate, device } = this.options;
    if (collate || !this.dataset.batch) return null;
    return this.dataset.batch(this.nextIndices(), device) as Batch;
  }

  private fetchSamples(): (Sample | Promise<Sample>)[] {
    return Array.from(this.nextIndices(), (index) => this.dataset.get(index));
  }

  private nextIndices(): Uint32Array {
    return required(this.plan).work(this.nextBatch++);
  }
}

export interface WorkerOptions extends PoolOptions {
  /** Number of batches that each worker makes in advance. */
  prefetch: number;
  /** Whether the threads stay alive after a pass. */
  persistent: boolean;
}

/** Ends the threads of a loader that is garbage collected. */
const poolFinalizers = finalizers<WorkerPool>((pool) => void pool.close());

/**
 * Makes batches on worker threads. The workers also stack the samples, unless there is a collate
 * function, which runs on the calling thread.
 */
export class WorkerMaker<W extends Work, Sample, Batch> implements BatchMaker<W, Batch> {
  private readonly uploader: Uploader;
  private pool: WorkerPool | null = null;
  private closing: Promise<unknown> = Promise.resolve();
  private plan: PassPlan<W> | null = null;
  private requested = 0;

  constructor(
    private readonly options: MakerOptions<Sample, Batch>,
    private readonly workers: WorkerOptions,
  ) {
    this.uploader = createUploader(options.device);
  }

  begin(plan: PassPlan<W>): void {
    if (!this.pool) {
      this.pool = new WorkerPool(this.workers);
      poolFinalizers.register(this, this.pool, this.pool);
    }
    this.pool.discard();
    this.plan = plan;
    this.requested = 0;
    this.requestAhead();
  }

  next(): Batch {
    return requireSynchronous(this.finishBatch(this.stopOnError(() => required(this.pool).take())));
  }

  async nextAsync(): Promise<Batch> {
    const pool = required(this.pool);
    try {
      return this.finishBatch(await pool.takeAsync());
    } catch (error) {
      this.stop();
      throw error;
    }
  }

  end(): void {
    if (this.workers.persistent) this.pool?.discard();
    else this.stop();
  }

  async close(): Promise<void> {
    this.stop();
    this.uploader.dispose();
    await this.closing;
  }

  private stopOnError<T>(body: () => T): T {
    try {
      return body();
    } catch (error) {
      this.stop();
      throw error;
    }
  }

  private stop(): void {
    if (!this.pool) return;
    poolFinalizers.unregister(this.pool);
    this.closing = this.pool.close();
    this.pool = null;
  }

  private requestAhead(): void {
    const pool = required(this.pool);
    const plan = required(this.plan);
    const limit = this.workers.prefetch * this.workers.workers;
    while (this.requested < plan.batches && pool.pending < limit) {
      pool.request(plan.work(this.requested++), this.options.collate !== null);
    }
  }

  private finishBatch(reply: Reply): Batch {
    if ('isEnd' in reply) return null as Batch;
    this.requestAhead();
    if ('batch' in reply) return uploadBatch(reply.batch, this.uploader) as Batch;
    const { samples } = reply as { samples: unknown[] };
    return this.options.collate?.(samples as Sample[], this.options.device) as Batch;
  }
}
