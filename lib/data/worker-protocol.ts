// Messages between the threads of a loader, and a shared array for waiting.
import type { MessagePort } from 'node:worker_threads';

import type { DatasetSource } from './dataset.js';
import type { HostBatch } from './host-array.js';

/** Activities of a worker. */
export const Phase = { none: 0, start: 1, idle: 2, sample: 3, batch: 4 } as const;

/**
 * The shared array: a count of messages, then phase and sample of each worker. A sender posts a
 * message, then increments the count and wakes readers. A reader without a message waits for a
 * change of the count that it has seen, so it misses no message.
 */
export class Signal {
  private constructor(readonly words: Int32Array) {}

  static create(workers: number): Signal {
    return new Signal(new Int32Array(new SharedArrayBuffer(4 * (1 + 2 * workers))));
  }

  /** Returns the same signal in another thread. */
  static of(words: Int32Array): Signal {
    return new Signal(words);
  }

  get count(): number {
    return Atomics.load(this.words, 0);
  }

  raise(): void {
    Atomics.add(this.words, 0, 1);
    Atomics.notify(this.words, 0);
  }

  /** Blocks until the count differs from `seen`, for at most `milliseconds`. */
  wait(seen: number, milliseconds: number): void {
    Atomics.wait(this.words, 0, seen, milliseconds);
  }

  /** Resolves when the count differs from `seen`, after at most `milliseconds`. */
  async waitAsync(seen: number, milliseconds: number): Promise<void> {
    await (Atomics as unknown as AsyncAtomics).waitAsync(this.words, 0, seen, milliseconds).value;
  }

  setPhase(worker: number, phase: number, sample = 0): void {
    Atomics.store(this.words, 2 + 2 * worker, sample);
    Atomics.store(this.words, 1 + 2 * worker, phase);
  }

  /** Returns whether the thread of the worker has started. */
  hasBegun(worker: number): boolean {
    return Atomics.load(this.words, 1 + 2 * worker) !== Phase.none;
  }

  /** Returns the current activity of the worker, such as "in sample 17", for errors. */
  describeActivity(worker: number): string {
    const sample = Atomics.load(this.words, 2 + 2 * worker) >>> 0;
    switch (Atomics.load(this.words, 1 + 2 * worker)) {
      case Phase.none:
        return 'starting its thread';
      case Phase.start:
        return 'building its dataset';
      case Phase.sample:
        return `in sample ${sample}`;
      case Phase.batch:
        return `making the batch of sample ${sample}`;
      default:
        return 'between batches';
    }
  }
}

/** Standard since ES2024. */
interface AsyncAtomics {
  waitAsync(
    words: Int32Array,
    index: number,
    value: number,
    milliseconds: number,
  ): { value: string | Promise<string> };
}

/** How ranks divide the samples of an iterable dataset. */
export interface RoundOptions {
  /** Number of samples per batch of a rank. */
  readonly batchSize: number;
  /** Number of this rank, from 0. */
  readonly rank: number;
  readonly worldSize: number;
  /** Drops an incomplete last round. */
  readonly dropLast: boolean;
}

/**
 * Samples [start, start + batchSize worldSize) of an epoch. Rank r takes the samples with index
 * modulo worldSize = r in the round.
 */
export interface Round extends RoundOptions {
  readonly epoch: number;
  readonly start: number;
}

/** The samples of a batch: sample numbers, or a round of an iterable dataset. */
export type Work = Uint32Array | Round;

/** A request of the main thread to a worker for a batch. */
export interface Job {
  id: number;
  work: Work;
  /** Requests the samples without stacking: the main thread combines them. */
  raw: boolean;
}

/** A worker's reply to the main thread, in the order of its jobs. */
export type Reply = { id: number } & (
  | { batch: HostBatch }
  | { samples: unknown[] }
  | { isEnd: true }
  | { failure: Failure }
);

/** An error as plain data, which can be sent to another thread. */
export interface Failure {
  /** "in sample 17", or another activity of the worker. */
  location: string;
  name: string;
  message: string;
  stack: string;
}

/** A report of the supervisor to the main thread about an ended worker. */
export interface WorkerEnd {
  worker: number;
  /** Error that ended the worker; null for a normal end. */
  error: Failure | null;
  exitCode: number | null;
}

/** The worker thread's data. */
export interface WorkerSetup {
  worker: number;
  source: DatasetSource;
  signal: Int32Array;
  port: MessagePort;
}

/** The supervisor thread's data. */
export interface SupervisorSetup {
  workers: WorkerSetup[];
  signal: Int32Array;
  /** Receives reports about workers that ended. */
  control: MessagePort;
  thread: ThreadOptions;
}

/** Options for starting threads; see node:worker_threads. */
export interface ThreadOptions {
  /** Node options of the threads, such as ["--import", "tsx"] for a dataset in TypeScript. */
  execArgv?: string[];
  /** Memory limits of each worker. */
  resourceLimits?: { maxOldGenerationSizeMb?: number; maxYoungGenerationSizeMb?: number };
}

/** Converts a thrown value into plain data. */
export function serializeError(thrown: unknown, location: string): Failure {
  const error = thrown as Partial<Error> | null;
  if (typeof error?.message !== 'string') {
    return { location, name: 'Error', message: String(thrown), stack: '' };
  }
  return {
    location,
    name: error.name ?? 'Error',
    message: error.message,
    stack: error.stack ?? '',
  };
}

/** Recreates an error with the name, message and stack of its thread. */
export function restoreError({ name, message, stack }: Failure): Error {
  const error = new Error(message);
  error.name = name;
  if (stack) error.stack = stack;
  return error;
}
