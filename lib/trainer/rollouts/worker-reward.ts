// rewards.worker(): calls a reward function of a module on worker threads, so that a timeout can
// end a call that never awaits.
import { resolve } from 'node:path';
import { pathToFileURL } from 'node:url';
import { DsError } from '../../errors.js';
import { dataError } from '../../runtime/input-errors.js';
import { namesOf, readOptions } from '../../runtime/options.js';
import { requireFinite, requireInteger } from '../../runtime/require-number.js';
import { requireType } from '../../runtime/require-type.js';
import { ThreadPool } from '../../runtime/thread-pool.js';
import type { Score } from '../methods/advantages.js';
import type { Reward, RewardInput } from './reward.js';

/** Options of worker(). */
export interface WorkerOptions {
  /** Name of the exported function. Default: the part of `file` after "#", or "default". */
  exported?: string;
  /** Number of threads that divide the completions. Default: 1. */
  threads?: number;
  /** Maximum number of seconds of a call on a thread. Then the thread is ended. Default: 600. */
  timeout?: number;
}

/** Data that a thread receives at its start. */
export interface WorkerSetup {
  /** URL of the module. */
  url: string;
  exported: string;
}

/** The input of a reward function without its signal, which cannot be sent to a thread. */
export type WorkerQuestion = Omit<RewardInput, 'signal'>;
const TIMEOUT = 600;

/**
 * Returns a reward function that calls an export of the module `file` on worker threads, with
 * copies of its input. The first call imports the module. A thread that exceeds `timeout` is ended,
 * even in a loop that never awaits. Throws DS_ARGUMENT if an option is invalid.
 */
export function worker(file: string, given: WorkerOptions = {}): Reward {
  const op = 'rewards.worker';
  const [path = '', after] = requireType(`${op} file`, file, 'string').split('#');
  const options = readOptions(op, given, namesOf.WorkerOptions);
  const { exported = after ?? 'default', threads = 1, timeout = TIMEOUT } = options;
  requireType(`${op} exported`, exported, 'string');
  requireInteger(`${op} threads`, threads, 1);
  requireFinite(`${op} timeout`, timeout, 0);
  const data: WorkerSetup = { url: pathToFileURL(resolve(path)).href, exported };
  const entry = { folder: __dirname, entry: 'worker-reward-thread', data };
  const timeoutMs = 1000 * timeout;
  const pool = new ThreadPool<WorkerQuestion, readonly Score[]>({ ...entry, threads, timeoutMs });
  const lostError = (got: string) => dataError(`${op} ${file}`, 'rewards', got);
  const ask = async (part: WorkerQuestion, signal: AbortSignal): Promise<readonly Score[]> => {
    try {
      return await pool.ask(part, lostError, signal);
    } catch (error) {
      signal.throwIfAborted();
      // For other errors, the caller finds the row that causes them.
      if (!(error instanceof DsError) || error.code === 'DS_ARGUMENT') throw error;
      throw new Error(error.got, { cause: error });
    }
  };
  const of: Reward = async ({ signal, ...input }) => {
    const parts = partsOf(input, threads);
    const found = await Promise.all(parts.map((part) => ask(part, signal)));
    return found.flat();
  };
  Object.defineProperty(of, 'name', { value: exported === 'default' ? path : exported });
  return of;
}

/** Divides the completions into at most `count` parts of about equal size, in order. */
function partsOf(input: WorkerQuestion, count: number): WorkerQuestion[] {
  const { length } = input.completions;
  const size = Math.ceil(length / count);
  const starts = Array.from({ length: Math.ceil(length / size) }, (_, i) => i * size);
  return starts.map((start) => {
    const cut = <Value>(list: readonly Value[]): readonly Value[] =>
      list.slice(start, start + size);
    const columns = Object.entries(input.columns).map(([name, list]) => [name, cut(list)]);
    return {
      step: input.step,
      prompts: cut(input.prompts),
      completions: cut(input.completions),
      columns: Object.fromEntries(columns) as WorkerQuestion['columns'],
    };
  });
}
