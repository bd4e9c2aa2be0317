// BackgroundSave: runs an asynchronous save on its own thread, so it does not need the event loop.
// The exit of the process waits for it.
import { EventEmitter } from 'node:events';

import type { CheckpointContent, LocalShard, SaveTarget } from '../../checkpoint/index.js';
import { DsError } from '../../errors.js';
import { Buffer } from '../../runtime/buffer.js';
import { Job } from '../../runtime/job.js';
import { startFailure, startThread } from '../../runtime/thread.js';
import {
  type BackgroundAnswer,
  type BackgroundJob,
  describeJob,
  errorOf,
  failureOf,
} from './background-job.js';
import type { StoreWorld } from './store-world.js';

/** Longest wait at process exit, in case the disk hangs. */
const EXIT_PATIENCE_MS = 600_000;

const running = new Set<BackgroundJob>();

/**
 * Blocks process exit until all saves have ended. Usually the thread keeps the event loop alive;
 * this is for process.exit() and uncaught errors.
 */
function awaitAll(): void {
  const deadline = Date.now() + EXIT_PATIENCE_MS;
  for (const { ended, target } of running) {
    const patience = Math.max(0, deadline - Date.now());
    if (Atomics.wait(ended, 0, 0, patience) !== 'timed-out') continue;
    process.stderr.write(`The checkpoint ${target.tag} in ${target.dir} was not saved in time.\n`);
  }
}

/**
 * A running asynchronous save. Its tensors are views of pinned memory, which must not change until
 * whenWritten() settles.
 */
export class BackgroundSave {
  private readonly job: BackgroundJob;
  private readonly whenBegunPromise: Promise<string>;
  private readonly ends: Promise<string>;

  constructor(
    target: SaveTarget,
    content: CheckpointContent<LocalShard>,
    world: StoreWorld | null,
  ) {
    this.job = describeJob(target, content, world?.offer() ?? null);
    const answers = new EventEmitter();
    this.whenBegunPromise = awaitAnswer(answers, 'begun');
    this.ends = awaitAnswer(answers, 'written');
    this.start(answers);
  }

  /**
   * Resolves when all ranks have begun, with the path that the checkpoint will have. Rejects as
   * Save.begin() does.
   */
  whenBegun(): Promise<string> {
    return this.whenBegunPromise;
  }

  /** Resolves with the path when the checkpoint is complete. Rejects as Save.write() does. */
  whenWritten(): Promise<string> {
    return this.ends;
  }

  private start(answers: EventEmitter): void {
    const { job } = this;
    const end = (name: string, value: unknown): void => {
      running.delete(job);
      if (running.size === 0) process.removeListener('exit', awaitAll);
      freeOffers(job);
      answers.emit(name, value);
    };
    const fail = (error: unknown): void => end('failure', errorOf(failureOf(error)));
    if (running.size === 0) process.on('exit', awaitAll);
    running.add(job);
    try {
      startThread(__dirname, 'background-thread', job)
        .on('message', (answer: BackgroundAnswer) => {
          if ('warning' in answer) warn(answer.warning);
          else if ('begun' in answer) answers.emit('begun', answer.begun);
          else if ('written' in answer) end('written', answer.written);
          else end('failure', errorOf(answer.failure));
        })
        .on('error', (error) => fail(startFailure('saveCheckpoint', error)))
        .on('exit', (code) => end('failure', diedError(job.target, code)));
    } catch (error) {
      fail(startFailure('saveCheckpoint', error));
    }
  }
}

/** Resolves with the first answer `name`. Rejects if a failure comes first. */
function awaitAnswer(answers: EventEmitter, name: string): Promise<string> {
  const answer = new Promise<string>((resolve, reject) => {
    answers.once(name, resolve).once('failure', reject);
  });
  answer.catch(() => {}); // The caller of `answer` gets the rejection.
  return answer;
}

/** Frees the offers that the thread has not taken. */
function freeOffers({ memory, world }: BackgroundJob): void {
  for (const { offer } of memory) Buffer.withdraw(offer);
  if (world) Job.withdraw(world.offer);
}

function warn({ message, name, code }: { message: string; name: string; code?: string }): void {
  process.emitWarning(message, { type: name, code });
}

function diedError({ dir, tag }: SaveTarget, code: number): DsError {
  return new DsError({
    code: 'DS_CHECKPOINT',
    op: `saving ${tag} in ${dir}`,
    expected: 'a completed save',
    got: `a save thread that ended with exit code ${code}`,
    hint: 'Earlier checkpoints are complete. Check the memory limit of the process.',
  });
}
