// WorkerPool: the loader's side of worker threads. It assigns batches to workers in turn, and
// returns the batches in order.

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
  type Failure,
  type Job,
  type Reply,
  restoreError,
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
  /** Maximum number of milliseconds to wait for a batch. */
  timeoutMs: number;
  thread: ThreadOptions;
}

/**
 * Runs the worker threads of a loader. Batch `id` is made by worker id modulo the number of
 * workers, so the order does not depend on the speed of the workers. The threads keep the process
 * alive only while a caller waits in takeAsync().
 */
export class WorkerPool {
  private readonly signal: Signal;
  private readonly ports: MessagePort[] = [];
  private readonly control: MessagePort;
  private readonly supervisor: Worker;
  private readonly workerEnds = new Map<number, WorkerEnd>();
  /** Error of the supervisor thread; null while the thread runs. */
  private supervisorError: DsError | null = null;
  private nextJob = 0;
  private nextReply = 0;
  private termination: Promise<unknown> | null = null;

  /** Throws DS_ARGUMENT if the arguments of the dataset's source cannot be copied to a thread. */
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
    // A program that never awaits receives no events; then take() detects the loss by its timeout.
    this.supervisor.on('error', (error) => {
      this.supervisorError = supervisorEndError(error);
      this.signal.raise();
    });
  }

  /** Number of batches that were requested and not yet taken. */
  get pending(): number {
    return this.nextJob - this.nextReply;
  }

  /** Requests the next batch from its worker. `raw`: whether the samples are not stacked. */
  request(work: Work, raw: boolean): void {
    const id = this.nextJob++;
    const job: Job = { id, work, raw };
    this.portOfJob(id).postMessage(job);
  }

  /** Drops the batches that were requested and not yet taken. */
  discard(): void {
    this.nextReply = this.nextJob;
  }

  /**
   * Returns the oldest requested batch. Blocks the thread until it arrives. Throws DS_DATA if its
   * worker failed, ended or stalls.
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

  /** Resolves with the oldest requested batch. Rejects as take() throws. */
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
      if (!this.termination) this.supervisor.unref();
    }
  }

  /** Ends all threads at once. Resolves after they have ended. May be called repeatedly. */
  close(): Promise<unknown> {
    if (!this.termination) {
      for (const port of [...this.ports, this.control]) port.close();
      this.termination = this.supervisor.terminate();
      this.signal.raise();
    }
    return this.termination;
  }

  /**
   * Returns the oldest requested batch; null if it has not arrived. Throws if it can no longer
   * arrive.
   */
  private poll(deadline: number): Reply | null {
    if (this.termination) throw closedError();
    const id = this.nextReply;
    const worker = id % this.options.workers;
    const isLate = performance.now() >= deadline;
    while (true) {
      const received = receiveMessageOnPort(this.portOfJob(id))?.message as Reply | undefined;
      if (!received) break;
      if (received.id < id) continue;
      if ('failure' in received) throw workerFailureError(worker, received.failure);
      this.nextReply++;
      return received;
    }
    this.readEnds();
    const end = this.workerEnds.get(worker);
    if (end) throw this.workerEndError(end);
    if (this.supervisorError) throw this.supervisorError;
    if (isLate) throw this.stallError(worker);
    return null;
  }

  /**
   * Reads the reports about ended workers. Only the first report of a worker counts: the error that
   * ended it arrives before its exit.
   */
  private readEnds(): void {
    while (true) {
      const received = receiveMessageOnPort(this.control)?.message as WorkerEnd | undefined;
      if (!received) return;
      if (!this.workerEnds.has(received.worker)) this.workerEnds.set(received.worker, received);
    }
  }

  private portOfJob(id: number): MessagePort {
    return required(this.ports[id % this.options.workers]);
  }

  private workerEndError({ worker, error, exitCode }: WorkerEnd): DsError {
    if (error) return workerFailureError(worker, error);
    return dataError(
      `DataLoader worker ${worker}`,
      'a running thread',
      `exit code ${exitCode} ${this.signal.describeActivity(worker)}`,
      'The dataset must not end its thread with process.exit().',
    );
  }

  private stallError(worker: number): DsError {
    return dataError(
      `DataLoader worker ${worker}`,
      `a batch within ${this.options.timeoutMs} ms`,
      `no batch; the worker is ${this.signal.describeActivity(worker)}`,
      this.signal.hasBegun(worker)
        ? 'Make that sample faster to get, use more workers, or raise workerTimeoutMs.'
        : 'The system may have refused the thread: see `ulimit -u` and `ulimit -n`.',
    );
  }
}

function workerFailureError(worker: number, failure: Failure): DsError {
  const cause = restoreError(failure);
  return new DsError({
    code: 'DS_DATA',
    op: `DataLoader worker ${worker}, ${failure.location}`,
    expected: 'samples',
    got: `${cause.name}: ${cause.message}`,
    cause,
  });
}

function supervisorEndError(cause: Error): DsError {
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
    'a loader that was closed during the wait for a batch',
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
