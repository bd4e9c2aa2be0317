// Worker threads for long computations. Each thread answers one question at a time.

import { parentPort, type Transferable, type Worker } from 'node:worker_threads';
import { DsError, type DsErrorFields } from '../errors.js';
import { errorCode, errorMessage } from './system-error.js';
import { startThread } from './thread.js';
import { boundedMs } from './timer.js';

/** A message of a thread: that it has started, or its answer or error for a question. */
type Reply<Answer> = 'started' | { answer: Answer } | { failure: DsErrorFields };

/** The threads of a pool. */
interface ThreadPoolOptions {
  /** Folder and name of the module that calls answerQuestions(). */
  folder: string;
  entry: string;
  /** The workerData of a thread. */
  data: object;
  /** Threads at most. */
  threads: number;
  /** Milliseconds that a thread may take for one question, not counting its own start. */
  timeoutMs: number;
  /** Milliseconds that a thread may take to start. Default: two minutes. */
  startMs?: number;
  /** MiB of a thread's heap; a thread that needs more ends. Default: Node's. */
  heapMiB?: number;
}

/** A busy machine reads the modules of a thread slowly. */
const START_MS = 120_000;

/** The error of a question without an answer. `isLimit`: it took too much time or memory. */
export type LostAnswerError = (got: string, isLimit: boolean) => DsError;

/** A pool of threads. It starts a thread when a question needs one; close() ends all threads. */
export class ThreadPool<Question, Answer> {
  private readonly idle: AnsweringThread<Question, Answer>[] = [];
  private readonly all = new Set<AnsweringThread<Question, Answer>>();
  /** Callers that wait for a free thread. */
  private readonly waiting: (() => void)[] = [];
  private isClosed = false;

  constructor(private readonly options: ThreadPoolOptions) {}

  /**
   * Rejects with the DsError that the thread threw. Rejects with `lost` if the thread ended or took
   * too long, if the pool was closed, or if the question cannot be copied. Rejects with the reason
   * of `signal` as soon as it is aborted, which ends a busy thread.
   */
  async ask(question: Question, lost: LostAnswerError, signal?: AbortSignal): Promise<Answer> {
    signal?.throwIfAborted();
    const thread = await this.freeThread(lost, signal);
    try {
      const { timeoutMs, startMs = START_MS } = this.options;
      return await thread.ask(question, { timeoutMs, startMs, lost, signal });
    } finally {
      if (thread.hasEnded) this.all.delete(thread);
      else this.idle.push(thread);
      this.waiting.shift()?.();
    }
  }

  /** Ends all threads: pending questions fail, and no thread starts afterwards. */
  async close(): Promise<void> {
    this.isClosed = true;
    for (const wake of this.waiting.splice(0)) wake();
    await Promise.all([...this.all].map((thread) => thread.end()));
    this.all.clear();
  }

  private async freeThread(
    lost: LostAnswerError,
    signal?: AbortSignal,
  ): Promise<AnsweringThread<Question, Answer>> {
    while (!this.isClosed && this.idle.length === 0 && this.all.size >= this.options.threads) {
      await this.waitForThread(signal);
      signal?.throwIfAborted();
    }
    if (this.isClosed) throw lost('a closed pool', false);
    for (let free = this.idle.pop(); free; free = this.idle.pop()) {
      if (!free.hasEnded) return free;
      this.all.delete(free);
    }
    const { folder, entry, data, heapMiB } = this.options;
    const limits = heapMiB === undefined ? undefined : { maxOldGenerationSizeMb: heapMiB };
    const thread = new AnsweringThread<Question, Answer>(startThread(folder, entry, data, limits));
    this.all.add(thread);
    return thread;
  }

  /** Resolves when a thread may be free, and when `signal` is aborted. */
  private waitForThread(signal?: AbortSignal): Promise<void> {
    return new Promise((resolve) => {
      const wake = (): void => {
        signal?.removeEventListener('abort', leave);
        resolve();
      };
      const leave = (): void => {
        this.waiting.splice(this.waiting.indexOf(wake), 1);
        resolve();
      };
      this.waiting.push(wake);
      signal?.addEventListener('abort', leave, { once: true });
    });
  }
}

/** Settings of a question. */
interface QuestionSettings {
  timeoutMs: number;
  startMs: number;
  lost: LostAnswerError;
  signal: AbortSignal | undefined;
}

/** One thread, which answers one question at a time. */
class AnsweringThread<Question, Answer> {
  private ended: string | null = null;
  private isOverLimit = false;
  private readonly started: Promise<void>;

  constructor(private readonly worker: Worker) {
    this.started = new Promise((resolve) => worker.once('message', () => resolve()));
    worker.on('error', (error) => {
      this.ended = error.message;
      this.isOverLimit = errorCode(error) === 'ERR_WORKER_OUT_OF_MEMORY';
    });
    worker.on('exit', (code) => {
      this.ended ??= `exit code ${code}`;
    });
    worker.unref();
  }

  get hasEnded(): boolean {
    return this.ended !== null;
  }

  ask(question: Question, { timeoutMs, startMs, lost, signal }: QuestionSettings): Promise<Answer> {
    return new Promise((resolve, reject) => {
      const finish = (body: () => void): void => {
        isFinished = true;
        clearTimeout(timer);
        signal?.removeEventListener('abort', onAbort);
        this.worker.off('message', onMessage).off('exit', onExit);
        this.worker.unref();
        body();
      };
      let timer: NodeJS.Timeout | undefined;
      let isFinished = false;
      const onMessage = (reply: Reply<Answer>): void => {
        if (reply === 'started') return;
        finish(() => {
          if ('answer' in reply) resolve(reply.answer);
          else reject(new DsError(reply.failure));
        });
      };
      const onExit = (): void =>
        finish(() => reject(lost(this.ended ?? 'it ended', this.isOverLimit)));
      const onAbort = (): void => {
        this.ended = 'a canceled question';
        void this.worker.terminate();
        finish(() => reject(signal?.reason));
      };
      const onTimeout = (): void => {
        this.ended = `no answer for ${timeoutMs} ms`;
        this.isOverLimit = true;
        void this.worker.terminate();
        onExit();
      };
      const onLateStart = (): void => {
        this.ended = `no start within ${startMs} ms`;
        void this.worker.terminate();
        onExit();
      };
      void this.started.then(() => {
        clearTimeout(timer);
        if (!isFinished) timer = setTimeout(onTimeout, boundedMs(timeoutMs));
      });
      if (this.ended !== null) {
        onExit();
        return;
      }
      timer = setTimeout(onLateStart, boundedMs(startMs));
      signal?.addEventListener('abort', onAbort);
      this.worker.ref();
      this.worker.on('message', onMessage).on('exit', onExit);
      try {
        this.worker.postMessage(question);
      } catch (cause) {
        finish(() =>
          reject(lost(`a question that cannot be copied: ${errorMessage(cause)}`, false)),
        );
      }
    });
  }

  async end(): Promise<void> {
    await this.worker.terminate();
  }
}

/**
 * Makes this thread one of a ThreadPool: `answer` is called with each question, one at a time.
 * `memoryOf` lists memory of an answer to transfer instead of copying. `unknown` describes the
 * operation if the thrown value is not a DsError.
 */
export function answerQuestions<Question, Answer>(
  answer: (question: Question) => Answer | Promise<Answer>,
  memoryOf: (answer: Answer) => Transferable[],
  unknown: (question: Question) => Pick<DsErrorFields, 'code' | 'op' | 'expected'>,
): void {
  parentPort?.postMessage('started' satisfies Reply<Answer>);
  parentPort?.on('message', async (question: Question) => {
    try {
      const reply = await answer(question);
      parentPort?.postMessage({ answer: reply } satisfies Reply<Answer>, memoryOf(reply));
    } catch (thrown) {
      const failure = fieldsOf(thrown) ?? { ...unknown(question), got: wordsOf(thrown) };
      parentPort?.postMessage({ failure } satisfies Reply<Answer>);
    }
  });
}

/** Returns the fields of an error for another thread; null unless it is a DsError. */
function fieldsOf(thrown: unknown): DsErrorFields | null {
  if (!(thrown instanceof DsError)) return null;
  const { code, op, expected, got, hint } = thrown;
  return { code, op, expected, got, hint };
}

const wordsOf = (thrown: unknown): string => (thrown as Error)?.stack ?? String(thrown);
