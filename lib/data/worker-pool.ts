// The main thread's side of the workers: assigns batches in turn and returns them in order.

import { extname, join } from 'node:path';
import {
  MessageChannel,
  type MessagePort,
  receiveMessageOnPort,
  Worker,
} from 'node:worker_threads';
import { DsError } from '../errors.js';
import { dataError } from '../runtime/input-errors.js';
import { required } from '../runtime/required.js';
import { errorMessage } from '../runtime/system-error.js';
import { startFailure } from '../runtime/thread.js';
import type { DatasetSource } from './dataset.js';
import {
  errorOf,
  type Failure,
  type Job,
  type Reply,
  Signal,
  type SupervisorSetup,
  type ThreadOptions,
  type Work,
  type WorkerEnd,
  type WorkerSetup,
} from './worker-protocol.js';

export interface PoolOptions {
  workers: number;
  source: DatasetSource;
  /** Milliseconds to wait for one batch. */
  timeoutMs: number;
  thread: ThreadOptions;
}

/**
 * Worker (id modulo the number of workers) makes batch id, so the order does not depend on the
 * workers' speed. Threads keep the process alive only while a caller awaits takeAsync().
 */
export class WorkerPool {
  private readonly signal: Signal;
  private readonly ports: MessagePort[] = [];
  private readonly control: MessagePort;
  private readonly supervisor: Worker;
  private readonly ended = new Map<number, WorkerEnd>();
  /** Error that ended the supervisor, or null. */
  private lost: DsError | null = null;
  private nextJob = 0;
  private nextReply = 0;
  private ending: Promise<unknown> | null = null;

  /** Throws DS_ARGUMENT if the dataset's arguments cannot be copied to a thread. */
  constructor(private readonly options: PoolOptions) {
    const { workers, source, thread } = options;
    this.signal = Signal.create(workers);
    const control = new MessageChannel();
    this.control = control.port1;
    const setups: WorkerSetup[] = [];
    for (let worker = 0; worker < workers; ++worker) {
      const { port1, port2 } = new MessageChannel();
      this.ports.push(port1);
      setups.push({ worker, source, signal: this.signal.words, port: port2 });
    }
    const words = this.signal.words;
    const setup = { workers: setups, signal: words, control: control.port2, thread };
    this.supervisor = startSupervisor(setup, source);
    this.supervisor.unref();
    // A loop that never awaits receives no events: take() detects the loss by a timeout.
    this.supervisor.on('error', (error) => {
      this.lost = unsupervisedError(error);
      this.signal.raise();
    });
  }

  /** Number of requested batches that take() has not returned. */
  get pending(): number {
    return this.nextJob - this.nextReply;
  }

  /** Requests the next batch from its worker. */
  request(work: Work, raw: boolean): void {
    const id = this.nextJob++;
    const job: Job = { id, work, raw };
    this.portOf(id).postMessage(job);
  }

  /** Drops requested batches that take() has not returned. */
  discard(): void {
    this.nextReply = this.nextJob;
  }

  /**
   * Returns the oldest requested batch. Throws DS_DATA if a worker failed, ended or stalls.
   */
  take(): Reply {
    const deadline = performance.now() + this.options.timeoutMs;
    while (true) {
      const seen = this.signal.count;
      const reply = this.poll(deadline);
      if (reply) return reply;
      this.signal.wait(seen, Math.max(0, deadline - performance.now()));
    }
  }

  /** Like take(), but does not block the event loop. */
  async takeAsync(): Promise<Reply> {
    const deadline = performance.now() + this.options.timeoutMs;
    this.supervisor.ref();
    try {
      while (true) {
        const seen = this.signal.count;
        const reply = this.poll(deadline);
        if (reply) return reply;
        await this.signal.waitAsync(seen, Math.max(0, deadline - performance.now()));
      }
    } finally {
      if (!this.ending) this.supervisor.unref();
    }
  }

  /** Ends all threads at once; resolves when they have ended. Idempotent. */
  close(): Promise<unknown> {
    if (!this.ending) {
      for (const port of [...this.ports, this.control]) port.close();
      this.ending = this.supervisor.terminate();
      this.signal.raise();
    }
    return this.ending;
  }

  /** Returns the oldest requested batch, or null if it has not arrived. */
  private poll(deadline: number): Reply | null {
    if (this.ending) throw closedError();
    const id = this.nextReply;
    const worker = id % this.options.workers;
    const late = performance.now() >= deadline;
    while (true) {
      const received = receiveMessageOnPort(this.portOf(id))?.message as Reply | undefined;
      if (!received) break;
      if (received.id < id) continue;
      if ('failure' in received) throw failedError(worker, received.failure);
      this.nextReply++;
      return received;
    }
    this.readEnds();
    const end = this.ended.get(worker);
    if (end) throw this.workerEndError(end);
    if (this.lost) throw this.lost;
    if (late) throw this.stallError(worker);
    return null;
  }

  /** Reads the ends of workers; the cause of an end arrives before the end. */
  private readEnds(): void {
    while (true) {
      const received = receiveMessageOnPort(this.control)?.message as WorkerEnd | undefined;
      if (!received) return;
      if (!this.ended.has(received.worker)) this.ended.set(received.worker, received);
    }
  }

  private portOf(id: number): MessagePort {
    return required(this.ports[id % this.options.workers]);
  }

  private workerEndError({ worker, error, exitCode }: WorkerEnd): DsError {
    if (error) return failedError(worker, error);
    return dataError(
      `DataLoader worker ${worker}`,
      'a running thread',
      `exit code ${exitCode} ${this.signal.activity(worker)}`,
      'The dataset must not end its thread with process.exit().',
    );
  }

  private stallError(worker: number): DsError {
    return dataError(
      `DataLoader worker ${worker}`,
      `a batch within ${this.options.timeoutMs} ms`,
      `nothing; it is ${this.signal.activity(worker)}`,
      this.signal.hasBegun(worker)
        ? 'Make that sample faster to get, use more workers, or raise workerTimeoutMs.'
        : 'The system may have refused the thread: see `ulimit -u` and `ulimit -n`.',
    );
  }
}

function failedError(worker: number, failure: Failure): DsError {
  const cause = errorOf(failure);
  return new DsError({
    code: 'DS_DATA',
    op: `DataLoader worker ${worker}, ${failure.location}`,
    expected: 'samples',
    got: `${cause.name}: ${cause.message}`,
    cause,
  });
}

function unsupervisedError(cause: Error): DsError {
  const failure = startFailure('DataLoader', cause);
  if (failure instanceof DsError) return failure;
  return new DsError({
    code: 'DS_DATA',
    op: 'DataLoader',
    expected: 'a running thread that supervises the workers',
    got: `a thread that ended: ${cause.message}`,
    cause,
  });
}

function closedError(): DsError {
  return dataError(
    'DataLoader',
    'an open loader',
    'one that was closed during the wait for a batch',
  );
}

function startSupervisor(setup: SupervisorSetup, source: DatasetSource): Worker {
  const entry = join(__dirname, `worker-supervisor${extname(__filename)}`);
  const transferList = [setup.control, ...setup.workers.map(({ port }) => port)];
  const { execArgv } = setup.thread;
  try {
    return new Worker(entry, { workerData: setup, transferList, execArgv });
  } catch (cause) {
    const failure = startFailure('DataLoader', cause);
    if (failure instanceof DsError) throw failure;
    throw new DsError({
      code: 'DS_ARGUMENT',
      op: `dataset of ${source.module}`,
      expected: 'arguments that can be copied to a worker thread',
      got: errorMessage(cause),
      hint: 'Pass plain data, such as a path, and build the rest in the exported function.',
      cause,
    });
  }
}
