// Messages between the threads of a loader, and Signal, a shared array for waiting.
import type { MessagePort } from 'node:worker_threads';

import type { DatasetSource } from './dataset.js';
import type { HostBatch } from './host-array.js';

/** The activities of a worker. */
export const Phase = { none: 0, start: 1, idle: 2, sample: 3, batch: 4 } as const;

/**
 * A shared array: a count of messages, then the phase and the sample of each worker. A sender posts
 * its message, then increments the count and wakes the readers. A reader that finds no message
 * waits until the count differs from the one that it saw before, so it misses no message.
 */
export class Signal {
  private constructor(readonly words: Int32Array) {}

  static create(workers: number): Signal {
    return new Signal(new Int32Array(new SharedArrayBuffer(4 * (1 + 2 * workers))));
  }

  /** Returns the signal of another thread, from its shared array. */
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

  /** Blocks the thread until the count differs from `seen`, for at most `milliseconds`. */
  wait(seen: number, milliseconds: number): void {
    Atomics.wait(this.words, 0, seen, milliseconds);
  }

  /** Resolves when the count differs from `seen`, or after `milliseconds`. */
  async waitAsync(seen: number, milliseconds: number): Promise<void> {
    await (Atomics as unknown as AsyncAtomics).waitAsync(this.words, 0, seen, milliseconds).value;
  }

  setPhase(worker: number, phase: number, sample = 0): void {
    Atomics.store(this.words, 2 + 2 * worker, sample);
    Atomics.store(this.words, 1 + 2 * worker, phase);
  }

  /** Returns whether the thread of a worker has started. */
  hasBegun(worker: number): boolean {
    return Atomics.load(this.words, 1 + 2 * worker) !== Phase.none;
  }

  /** Returns the activity of a worker, such as "in sample 17", for errors. */
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

/** The part of Atomics that is standard since ES2024. */
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
  /** Index of this rank, from 0. */
  readonly rank: number;
  readonly worldSize: number;
  /** Whether an incomplete last round is dropped. */
  readonly dropLast: boolean;
}

/**
 * A round: batchSize * worldSize samples of an epoch, from index `start` on. Rank r takes the
 * samples with an index in the round modulo worldSize = r.
 */
export interface Round extends RoundOptions {
  readonly epoch: number;
  readonly start: number;
}

/** Which samples a batch has: their indices, or a round of an iterable dataset. */
export type Work = Uint32Array | Round;

/** A request for a batch, from the loader's thread to a worker. */
export interface Job {
  id: number;
  work: Work;
  /** Whether the samples are sent without stacking, because the loader's thread combines them. */
  raw: boolean;
}

/** A worker's reply to a request. Replies have the order of the requests. */
export type Reply = { id: number } & (
  | { batch: HostBatch }
  | { samples: unknown[] }
  | { isEnd: true }
  | { failure: Failure }
);

/** An error as plain data, which can be sent to another thread. */
export interface Failure {
  /** The activity of the worker, such as "in sample 17". */
  location: string;
  name: string;
  message: string;
  stack: string;
}

/** The supervisor's report to the loader's thread that a worker has ended. */
export interface WorkerEnd {
  worker: number;
  /** The error that ended the worker; null if it exited. */
  error: Failure | null;
  exitCode: number | null;
}

/** Data that a worker thread receives at its start. */
export interface WorkerSetup {
  worker: number;
  source: DatasetSource;
  signal: Int32Array;
  port: MessagePort;
}

/** Data that the supervisor thread receives at its start. */
export interface SupervisorSetup {
  workers: WorkerSetup[];
  signal: Int32Array;
  /** The port for reports about ended workers. */
  control: MessagePort;
  thread: ThreadOptions;
}

/** Options for starting worker threads; see node:worker_threads. */
export interface ThreadOptions {
  /** Node options of the threads, for example ["--import", "tsx"] for a dataset in TypeScript. */
  execArgv?: string[];
  /** Memory limits of each worker. */
  resourceLimits?: { maxOldGenerationSizeMb?: number; maxYoungGenerationSizeMb?: number };
}

/** Converts a thrown value to plain data. `location`: the activity of the worker. */
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

/** Creates an error with the name, message and stack of the original. */
export function restoreError({ name, message, stack }: Failure): Error {
  const error = new Error(message);
  error.name = name;
  if (stack) error.stack = stack;
  return error;
}
