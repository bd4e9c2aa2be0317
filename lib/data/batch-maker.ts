// Who makes the batches of a pass over the data: this thread, one at a time, or workers, ahead.
import { types } from 'node:util';

import { DsError } from '../errors.js';
import type { Device } from '../runtime/device.js';
import { collateWith, uploadBatch } from './collate.js';
import type { Dataset } from './dataset.js';
import { type Uploader, uploaderFor } from './upload.js';
import { type PoolOptions, WorkerPool } from './worker-pool.js';
import type { Reply } from './worker-protocol.js';

/** The indices of each batch of a pass. */
export interface PassPlan {
  readonly batches: number;
  indices(batch: number): Uint32Array;
}

/** Makes the batches of one pass at a time, in order. */
export interface BatchMaker<Batch> {
  /** Starts a pass; one that was under way is given up. */
  begin(plan: PassPlan): void;
  /** The next batch of the pass, which has one. Throws DS_DATA, or what the dataset throws. */
  next(): Batch;
  nextAsync(): Promise<Batch>;
  /** Ends the pass, wherever it is. */
  end(): void;
  /** Frees threads and staging memory; a later begin() starts anew. */
  close(): Promise<void>;
}

export interface MakerOptions<Sample, Batch> {
  dataset: Dataset<Sample>;
  device: Device;
  /** Null for the default, which stacks. */
  collate: ((samples: Sample[], device: Device) => Batch) | null;
}

/** Gets the samples on the calling thread. */
export class InProcessMaker<Sample, Batch> implements BatchMaker<Batch> {
  private readonly uploader: Uploader;
  private plan: PassPlan | null = null;
  private at = 0;

  constructor(private readonly options: MakerOptions<Sample, Batch>) {
    this.uploader = uploaderFor(options.device);
  }

  begin(plan: PassPlan): void {
    this.plan = plan;
    this.at = 0;
  }

  next(): Batch {
    const whole = this.whole();
    if (whole) return whole;
    const samples = this.fetch();
    if (!samples.some(types.isPromise)) return this.combine(samples as Sample[]);
    for (const sample of samples) if (types.isPromise(sample)) sample.catch(() => {});
    throw new DsError({
      code: 'DS_DATA',
      op: 'DataLoader',
      expected: 'samples at once',
      got: 'a dataset whose get() returns promises',
      hint: 'Iterate with `for await`.',
    });
  }

  async nextAsync(): Promise<Batch> {
    return this.whole() ?? this.combine(await Promise.all(this.fetch()));
  }

  end(): void {}

  /** The next batch by the dataset's own batch(), if it has one and nobody else makes it. */
  private whole(): Batch | null {
    const { dataset, collate, device } = this.options;
    if (collate || !dataset.batch) return null;
    return dataset.batch((this.plan as PassPlan).indices(this.at++), device) as Batch;
  }

  async close(): Promise<void> {
    this.uploader.dispose();
  }

  private fetch(): (Sample | Promise<Sample>)[] {
    const indices = (this.plan as PassPlan).indices(this.at++);
    return Array.from(indices, (index) => this.options.dataset.get(index));
  }

  private combine(samples: Sample[]): Batch {
    const { collate, device } = this.options;
    if (collate) return collate(samples, device);
    return collateWith(samples, this.uploader, device) as Batch;
  }
}

export interface WorkerOptions extends PoolOptions {
  /** Batches that each worker makes ahead. */
  prefetch: number;
  /** Whether the threads outlive a pass. */
  persistent: boolean;
}

/** Ends the threads of a loader that nobody can reach any more. */
const abandoned = new FinalizationRegistry<WorkerPool>((pool) => void pool.close());

/** Gets the samples on worker threads, which also stack them unless a collate function is given. */
export class WorkerMaker<Sample, Batch> implements BatchMaker<Batch> {
  private readonly uploader: Uploader;
  private pool: WorkerPool | null = null;
  private closing: Promise<unknown> = Promise.resolve();
  private plan: PassPlan | null = null;
  private ordered = 0;

  constructor(
    private readonly options: MakerOptions<Sample, Batch>,
    private readonly workers: WorkerOptions,
  ) {
    this.uploader = uploaderFor(options.device);
  }

  begin(plan: PassPlan): void {
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
    return this.finish(this.guard(() => (this.pool as WorkerPool).take()));
  }

  async nextAsync(): Promise<Batch> {
    const pool = this.pool as WorkerPool;
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
    const pool = this.pool as WorkerPool;
    const plan = this.plan as PassPlan;
    const limit = this.workers.prefetch * this.workers.workers;
    while (this.ordered < plan.batches && pool.pending < limit) {
      pool.order(plan.indices(this.ordered++), this.options.collate !== null);
    }
  }

  private finish(reply: Reply): Batch {
    this.orderAhead();
    if ('batch' in reply) return uploadBatch(reply.batch, this.uploader) as Batch;
    const { samples } = reply as { samples: unknown[] };
    return this.options.collate?.(samples as Sample[], this.options.device) as Batch;
  }
}
