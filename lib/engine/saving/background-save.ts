// Runs a save on its own thread, independent of the event loop. Process exit waits for it.
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

/** Limit for the wait at process exit, in case the disk hangs. */
const EXIT_PATIENCE_MS = 600_000;

const running = new Set<BackgroundJob>();

/**
 * Runs at process exit. Before, the thread keeps the event loop alive, except for process.exit()
 * and uncaught errors.
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
 * A save in progress. The tensors are views of pinned memory, which must not change until
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
   * Resolves with the future path of the checkpoint after all ranks have begun. Rejects as
   * Save.begin does.
   */
  whenBegun(): Promise<string> {
    return this.whenBegunPromise;
  }

  /** Resolves with the path after the checkpoint is complete. Rejects as Save.write does. */
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

/** Resolves with the answer called `name`; rejects if a failure comes first. */
function awaitAnswer(answers: EventEmitter, name: string): Promise<string> {
  const answer = new Promise<string>((resolve, reject) => {
    answers.once(name, resolve).once('failure', reject);
  });
  answer.catch(() => {}); // The caller receives the rejection.
  return answer;
}

/** Frees the offers that the thread did not take. */
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
