// Makes the batches of a pass over the data: on this thread, or ahead of time on worker threads.

import { types } from 'node:util';
import type { Device } from '../runtime/device.js';
import { finalizers } from '../runtime/finalizers.js';
import { required } from '../runtime/required.js';
import { collateWith, uploadBatch } from './collate.js';
import { type Dataset, onlyLater } from './dataset.js';
import { type Uploader, uploaderFor } from './upload.js';
import { type PoolOptions, WorkerPool } from './worker-pool.js';
import type { Reply, Work } from './worker-protocol.js';

/** Work of each batch of a pass: sample numbers, or a round of a stream. */
export interface PassPlan<Work> {
  /** Infinity for a stream without a length. */
  readonly batches: number;
  work(batch: number): Work;
}

/**
 * Makes the batches of one pass at a time, in order. For a stream without a length, Batch includes
 * null, which marks the end.
 */
export interface BatchMaker<Work, Batch> {
  /** Starts a pass and abandons the current one. */
  begin(plan: PassPlan<Work>): void;
  /** The next batch of the pass. Throws DS_DATA, and errors of the dataset. */
  next(): Batch;
  nextAsync(): Promise<Batch>;
  /** Ends the pass at any position. */
  end(): void;
  /** Frees threads and staging memory; a later begin() creates them again. */
  close(): Promise<void>;
}

/** Options of a batch maker. */
export interface MakerOptions<Sample, Batch> {
  device: Device;
  /** Null for the default, which stacks. */
  collate: ((samples: Sample[], device: Device) => Batch) | null;
}

/** Makes a batch of samples on the calling thread. */
export class SampleCombiner<Sample, Batch> {
  private readonly uploader: Uploader;

  constructor(private readonly options: MakerOptions<Sample, Batch>) {
    this.uploader = uploaderFor(options.device);
  }

  combine(samples: Sample[]): Batch {
    const { collate, device } = this.options;
    if (collate) return collate(samples, device);
    return collateWith(samples, this.uploader, device) as Batch;
  }

  /** combine() of samples that are there. Throws DS_DATA for promises. */
  combineNow(samples: (Sample | Promise<Sample>)[]): Batch {
    if (!samples.some(types.isPromise)) return atOnce(this.combine(samples as Sample[]));
    for (const sample of samples) if (types.isPromise(sample)) sample.catch(() => {});
    throw onlyLater('a dataset of promises');
  }

  dispose(): void {
    this.uploader.dispose();
  }
}

/** Returns a batch. Throws DS_DATA for a promise. */
function atOnce<Batch>(batch: Batch): Batch {
  if (!types.isPromise(batch)) return batch;
  batch.catch(() => {});
  throw onlyLater('a collate function that takes time');
}

/** Gets the samples on the calling thread. */
export class InProcessMaker<Sample, Batch> implements BatchMaker<Uint32Array, Batch> {
  private readonly combiner: SampleCombiner<Sample, Batch>;
  private plan: PassPlan<Uint32Array> | null = null;
  private at = 0;

  constructor(
    private readonly dataset: Dataset<Sample>,
    private readonly options: MakerOptions<Sample, Batch>,
  ) {
    this.combiner = new SampleCombiner(options);
  }

  begin(plan: PassPlan<Uint32Array>): void {
    this.plan = plan;
    this.at = 0;
  }

  next(): Batch {
    return this.whole() ?? this.combiner.combineNow(this.fetch());
  }

  async nextAsync(): Promise<Batch> {
    return this.whole() ?? this.combiner.combine(await Promise.all(this.fetch()));
  }

  end(): void {}

  async close(): Promise<void> {
    this.combiner.dispose();
  }

  /** The next batch by the dataset's batch(), if it has one and no collate function is given. */
  private whole(): Batch | null {
    const { collate, device } = this.options;
    if (collate || !this.dataset.batch) return null;
    return this.dataset.batch(this.indices(), device) as Batch;
  }

  private fetch(): (Sample | Promise<Sample>)[] {
    return Array.from(this.indices(), (index) => this.dataset.get(index));
  }

  private indices(): Uint32Array {
    return required(this.plan).work(this.at++);
  }
}

export interface WorkerOptions extends PoolOptions {
  /** Batches that each worker makes ahead. */
  prefetch: number;
  /** Whether the threads outlive a pass. */
  persistent: boolean;
}

/** Ends the threads of a loader that was garbage-collected. */
const abandoned = finalizers<WorkerPool>((pool) => void pool.close());

/** Gets the samples on worker threads, which also stack them unless a collate function is given. */
export class WorkerMaker<W extends Work, Sample, Batch> implements BatchMaker<W, Batch> {
  private readonly uploader: Uploader;
  private pool: WorkerPool | null = null;
  private closing: Promise<unknown> = Promise.resolve();
  private plan: PassPlan<W> | null = null;
  private ordered = 0;

  constructor(
    private readonly options: MakerOptions<Sample, Batch>,
    private readonly workers: WorkerOptions,
  ) {
    this.uploader = uploaderFor(options.device);
  }

  begin(plan: PassPlan<W>): void {
    if (!this.pool) {
      this.pool = new WorkerPool(this.workers);
      abandoned.register(this, this.pool, this.pool);
    }
    this.pool.discard();
    this.plan = plan;
    this.ordered = 0;
    this.orderAhead();
  }

  next(): Batch {
    return atOnce(this.finish(this.guard(() => required(this.pool).take())));
  }

  async nextAsync(): Promise<Batch> {
    const pool = required(this.pool);
    try {
      return this.finish(await pool.takeAsync());
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

  private guard<T>(body: () => T): T {
    try {
      return body();
    } catch (error) {
      this.stop();
      throw error;
    }
  }

  private stop(): void {
    if (!this.pool) return;
    abandoned.unregister(this.pool);
    this.closing = this.pool.close();
    this.pool = null;
  }

  private orderAhead(): void {
    const pool = required(this.pool);
    const plan = required(this.plan);
    const limit = this.workers.prefetch * this.workers.workers;
    while (this.ordered < plan.batches && pool.pending < limit) {
      pool.request(plan.work(this.ordered++), this.options.collate !== null);
    }
  }

  private finish(reply: Reply): Batch {
    if ('isEnd' in reply) return null as Batch;
    this.orderAhead();
    if ('batch' in reply) return uploadBatch(reply.batch, this.uploader) as Batch;
    const { samples } = reply as { samples: unknown[] };
    return this.options.collate?.(samples as Sample[], this.options.device) as Batch;
  }
}
