// Reward functions: their types, and rewardsOf(), which calls them with timeouts and names failing
// rows.
import { setTimeout as pause } from 'node:timers/promises';
import { DsError } from '../../errors.js';
import { formatValue } from '../../runtime/format-value.js';
import { valueError } from '../../runtime/input-errors.js';
import { isObject } from '../../runtime/is-object.js';
import { namesOf, readOptions } from '../../runtime/options.js';
import { requireFinite } from '../../runtime/require-number.js';
import { requireType } from '../../runtime/require-type.js';
import { timerMs } from '../../runtime/timer.js';
import type { ChatMessage } from '../../text/index.js';
import type { Score } from '../methods/advantages.js';

/** A completion of a prompt. */
export interface Completion {
  /** The text, without the prompt and without the end token. */
  readonly content: string;
  /** The sampled tokens, including the end token. */
  readonly tokens: readonly number[];
  /** Whether it ended because of the limit of tokens. */
  readonly isTruncated: boolean;
}

/** The input of a reward function. Each list has one element per completion. */
export interface RewardInput {
  /** The prompt of each completion: a text, or messages. */
  readonly prompts: readonly (string | readonly ChatMessage[])[];
  /** The completions to rate. */
  readonly completions: readonly Completion[];
  /** The other values of the prompts' rows, by name. */
  readonly columns: Readonly<Record<string, readonly unknown[]>>;
  /** Number of updates so far. */
  readonly step: number;
  /** Is aborted if the function exceeds its timeout. */
  readonly signal: AbortSignal;
}

/** Returns a reward for each completion; null for a completion that it cannot rate. */
export type Reward = (input: RewardInput) => readonly Score[] | Promise<readonly Score[]>;

/** A reward function with options. */
export interface WeightedReward {
  /** The function. */
  of: Reward;
  /** Factor of its rewards in the sum. Default: 1. */
  weight?: number;
  /** Its name in metrics. Default: the name of the function. */
  name?: string;
  /** Maximum number of seconds of a call, if the function returns a promise. Default: 600. */
  timeout?: number;
}

const TIMEOUT = 600;

/** WeightedReward with default values. */
export type RewardSettings = Required<WeightedReward>;

/**
 * Returns the reward functions in `given`, with default values. Throws DS_ARGUMENT for an empty
 * list or an invalid option.
 */
export function readRewards(
  op: string,
  given: Reward | WeightedReward | readonly (Reward | WeightedReward)[],
): readonly RewardSettings[] {
  const list = Array.isArray(given) ? given : [given];
  if (list.length === 0) throw valueError(op, 'at least one reward function', given);
  const read = list.map((item: Reward | WeightedReward, i): RewardSettings => {
    const place = `${op} ${i}`;
    if (typeof item !== 'function' && !isObject(item)) {
      throw valueError(place, 'a function, or { of, weight, name, timeout }', item);
    }
    const options =
      typeof item === 'function' ? { of: item } : readOptions(place, item, namesOf.WeightedReward);
    const { of, weight = 1, timeout = TIMEOUT } = options;
    requireType(`${place} of`, of, 'function');
    const name = options.name ?? (of.name || `reward_${i}`);
    requireFinite(`${place} weight`, weight);
    requireFinite(`${place} timeout`, timeout, 0);
    return { of, weight, timeout, name: requireType(`${place} name`, name, 'string') };
  });
  const twice = read.find(
    ({ name }, i) => read.findIndex((required) => required.name === name) !== i,
  );
  if (!twice) return read;
  throw valueError(op, 'functions of different names: { of, name }', twice.name);
}

/** Completions to rate, with the locations of their rows for errors. */
export interface CompletionsToScore extends Omit<RewardInput, 'signal'> {
  readonly locations: readonly string[];
}

/**
 * Resolves with the rewards, by completion and function. All functions run concurrently. Rejects
 * with DS_DATA if a function fails, and with the reason of `stop` if it is aborted.
 */
export async function rewardsOf(
  functions: readonly RewardSettings[],
  judged: CompletionsToScore,
  stop: AbortSignal | null = null,
): Promise<Score[][]> {
  if (judged.completions.length === 0) return [];
  const ending = new AbortController();
  const end = (): void => ending.abort(stop?.reason);
  stop?.addEventListener('abort', end, { once: true });
  try {
    const columns = await Promise.all(functions.map((fn) => judge(fn, judged, ending.signal)));
    return judged.completions.map((_, i) => columns.map((column) => column[i] ?? null));
  } catch (error) {
    ending.abort(error);
    throw error;
  } finally {
    stop?.removeEventListener('abort', end);
  }
}

async function judge(
  settings: RewardSettings,
  judged: CompletionsToScore,
  ending: AbortSignal,
): Promise<readonly Score[]> {
  const { name } = settings;
  const found = await callReward(settings, judged, ending).catch(async (error: unknown) => {
    if (error instanceof DsError) throw error;
    const at = await failingRow(settings, judged);
    const got = `the error "${messageOf(error)}"`;
    throw failure({ name, judged, at }, { expected: 'a reward', got, cause: error });
  });
  const { length } = judged.completions;
  if (!Array.isArray(found) && !ArrayBuffer.isView(found)) {
    const expected = `a list of ${length} rewards`;
    throw failure({ name, judged }, { expected, got: formatValue(found) });
  }
  const list = Array.from(found as readonly Score[]);
  if (list.length !== length) {
    throw failure({ name, judged }, { expected: `${length} rewards`, got: `${list.length}` });
  }
  return list.map((value, i) => {
    if (value === null || value === undefined) return null;
    if (typeof value === 'boolean') return Number(value);
    if (Number.isFinite(value)) return value;
    const fields = { expected: 'a finite number, or null', got: formatValue(value) };
    throw failure({ name, judged, at: i }, fields);
  });
}

const messageOf = (error: unknown): string =>
  error instanceof Error ? error.message : String(error);

/**
 * Calls a reward function. Rejects with DS_DATA after the timeout, and with the reason of `ending`
 * if it is aborted.
 */
async function callReward(
  { of, name, timeout }: RewardSettings,
  judged: CompletionsToScore,
  ending: AbortSignal,
): Promise<readonly Score[]> {
  const ownController = new AbortController();
  const signal = AbortSignal.any([ownController.signal, ending]);
  const { locations: _, ...input } = judged;
  const result = (async () => of({ ...input, signal }))();
  const timer = new AbortController();
  const late = pause(timerMs(timeout), null, { signal: timer.signal }).then(() => {
    const hint = 'Raise `timeout` of the reward, in seconds.';
    const fields = { expected: `rewards within ${timeout} s`, got: 'none', hint };
    const error = failure({ name, judged }, fields);
    ownController.abort(error);
    throw error;
  });
  let end = (): void => {};
  const ended = new Promise<never>((_, reject) => {
    end = () => reject(ending.reason);
    ending.addEventListener('abort', end, { once: true });
  });
  try {
    return await Promise.race([result, late, ended]);
  } finally {
    timer.abort();
    ending.removeEventListener('abort', end);
    late.catch(() => {});
    result.catch(() => {});
    ended.catch(() => {});
  }
}

/**
 * Calls the function with one completion at a time. Returns the index of the first failing
 * completion, or null. Errors can then name its row.
 */
async function failingRow(
  settings: RewardSettings,
  judged: CompletionsToScore,
): Promise<number | null> {
  for (const i of judged.completions.keys()) {
    const one = (list: readonly unknown[]): unknown[] => [list[i]];
    const columns = Object.entries(judged.columns).map(([key, list]) => [key, one(list)]);
    const alone = {
      ...judged,
      prompts: one(judged.prompts) as never,
      completions: one(judged.completions) as never,
      columns: Object.fromEntries(columns),
    };
    try {
      await callReward(settings, alone, new AbortController().signal);
    } catch {
      return i;
    }
  }
  return null;
}

/**
 * Returns the error of a reward function for the completion `at`; for null, for all completions.
 */
function failure(
  {
    name,
    judged: { locations },
    at = null,
  }: { name: string; judged: CompletionsToScore; at?: number | null },
  fields: { expected: string; got: string; cause?: unknown; hint?: string },
): DsError {
  const rows = at === null ? [...new Set(locations)] : [locations[at] ?? ''];
  const shown = rows.length > 3 ? `${rows.slice(0, 3).join(', ')} and others` : rows.join(', ');
  return new DsError({ code: 'DS_DATA', op: `reward ${name} of ${shown}`, ...fields });
}
