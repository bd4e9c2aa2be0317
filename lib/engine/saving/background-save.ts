// A save on a thread of its own: it goes on whatever the program's JavaScript does, and to its end
// when the program ends.
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

/**
 * How long the end of the process waits for saves: a disk that does not answer must not keep it for
 * ever.
 */
const EXIT_PATIENCE_MS = 600_000;

const running = new Set<BackgroundJob>();

/**
 * Until then the event loop has kept the process alive; process.exit() and uncaught errors do not.
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
 * The content's tensors are views of pinned memory that must not change until written() settles.
 */
export class BackgroundSave {
  private readonly job: BackgroundJob;
  private readonly begins: Promise<string>;
  private readonly ends: Promise<string>;

  constructor(
    target: SaveTarget,
    content: CheckpointContent<LocalShard>,
    world: StoreWorld | null,
  ) {
    this.job = describeJob(target, content, world?.seat() ?? null);
    const answers = new EventEmitter();
    this.begins = answerOf(answers, 'begun');
    this.ends = answerOf(answers, 'written');
    this.start(answers);
  }

  /**
   * Resolves with the path that the checkpoint will have once all ranks have begun. Rejects as
   * Save.begin does.
   */
  begun(): Promise<string> {
    return this.begins;
  }

  /** Resolves with the path when the checkpoint is complete. Rejects as Save.write does. */
  written(): Promise<string> {
    return this.ends;
  }

  private start(answers: EventEmitter): void {
    const { job } = this;
    const end = (name: string, value: unknown): void => {
      running.delete(job);
      if (running.size === 0) process.removeListener('exit', awaitAll);
      withdraw(job);
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
        .on('exit', (code) => end('failure', died(job.target, code)));
    } catch (error) {
      fail(startFailure('saveCheckpoint', error));
    }
  }
}

/** What is said under `name`; rejects with a failure that comes before. */
function answerOf(answers: EventEmitter, name: string): Promise<string> {
  const answer = new Promise<string>((resolve, reject) => {
    answers.once(name, resolve).once('failure', reject);
  });
  answer.catch(() => {}); // Whoever asks for it is told.
  return answer;
}

/** What the thread has not come to take. */
function withdraw({ memory, seat }: BackgroundJob): void {
  for (const { offer } of memory) Buffer.withdraw(offer);
  if (seat) Job.withdraw(seat.offer);
}

function warn({ message, name, code }: { message: string; name: string; code?: string }): void {
  process.emitWarning(message, { type: name, code });
}

function died({ dir, tag }: SaveTarget, code: number): DsError {
  return new DsError({
    code: 'DS_CHECKPOINT',
    op: `saving ${tag} in ${dir}`,
    expected: 'a thread that writes it to the end',
    got: `one that ended with code ${code}`,
    hint: 'The checkpoints before it are whole. Was process memory short?',
  });
}
