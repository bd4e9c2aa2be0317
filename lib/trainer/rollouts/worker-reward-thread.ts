// Entry of a worker thread that calls a reward function of a module of the user.
import { workerData } from 'node:worker_threads';
import { argumentError, dataError } from '../../runtime/input-errors.js';
import { answerQuestions } from '../../runtime/thread-pool.js';
import type { Score } from '../methods/advantages.js';
import type { Reward } from './reward.js';
import type { WorkerQuestion, WorkerSetup } from './worker-reward.js';

const { url, exported } = workerData as WorkerSetup;
let found: Reward | null = null;

async function judge(question: WorkerQuestion): Promise<readonly Score[]> {
  found ??= await load();
  const { signal } = new AbortController();
  try {
    return Array.from(await found({ ...question, signal }));
  } catch (error) {
    const got = error instanceof Error ? error.message : String(error);
    throw dataError(`rewards.worker ${url}`, 'rewards', got);
  }
}

async function load(): Promise<Reward> {
  const op = `rewards.worker ${url}`;
  const all = (await import(url).catch((error: unknown) => {
    throw argumentError(op, 'a module that can be imported', String(error));
  })) as Record<string, unknown>;
  const value = all[exported];
  if (typeof value === 'function') return value as Reward;
  const got = Object.keys(all).join(', ') || 'no exports';
  throw argumentError(op, `an exported function "${exported}"`, got);
}

answerQuestions(
  judge,
  () => [],
  () => ({ code: 'DS_DATA', op: `rewards.worker ${url}`, expected: 'rewards' }),
);
