// Tools in rollouts: a function of the caller answers a completion, and the model continues after
// it.
import { type CheckpointWorld, onAllRanks } from '../../checkpoint/index.js';
import { DsError } from '../../errors.js';
import type { GenerateRequest } from '../../inference/index.js';
import { formatValue } from '../../runtime/format-value.js';
import { valueError } from '../../runtime/input-errors.js';
import { isObject } from '../../runtime/is-object.js';
import { namesOf, readOptions } from '../../runtime/options.js';
import { requireFinite } from '../../runtime/require-number.js';
import { requireType } from '../../runtime/require-type.js';
import { required } from '../../runtime/required.js';
import { timerMs } from '../../runtime/timer.js';
import type { ChatMessage, PromptSample, Tokenizer } from '../../text/index.js';
import { hashOf, type Sampled } from './generation.js';
import type { Rollouts } from './rollouts.js';

/** The input of a tool function: a completion at the end of a turn. */
export interface ToolInput {
  /** The prompt: a text, or messages. */
  readonly prompt: string | readonly ChatMessage[];
  /** The other values of the prompt's row, by name. */
  readonly columns: Readonly<Record<string, unknown>>;
  /** The text that the model sampled in this turn. */
  readonly content: string;
  /** The text of all turns so far, including results of the tool. */
  readonly whole: string;
  /** Number of turns before this one. */
  readonly turn: number;
  /** Is aborted if the function exceeds its timeout. */
  readonly signal: AbortSignal;
}

/** Returns the text that follows the completion; null ends the completion. */
export type RolloutTool = (input: ToolInput) => string | null | Promise<string | null>;

/** A tool function with options. */
export interface TimedTool {
  /** The function. */
  of: RolloutTool;
  /** Maximum number of seconds of a call. Default: 600. */
  timeout?: number;
}

const TIMEOUT = 600;

/** Returns the function with its timeout. Throws DS_ARGUMENT if either is invalid. */
export function readTool(op: string, given: RolloutTool | TimedTool): Required<TimedTool> {
  if (typeof given === 'function') return { of: given, timeout: TIMEOUT };
  if (!isObject(given)) throw valueError(op, 'a function, or { of, timeout }', given);
  const { of, timeout = TIMEOUT } = readOptions(op, given as TimedTool, namesOf.TimedTool);
  requireType(`${op} of`, of, 'function');
  requireFinite(`${op} timeout`, timeout, 0);
  return { of, timeout };
}

/** How completions use a tool. */
interface ToolTurns {
  tool: Required<TimedTool>;
  /** Maximum number of calls of the tool for a completion. */
  turns: number;
  tokenizer: Tokenizer;
  /** Maximum number of tokens of a completion, including results of the tool. */
  max: number;
}

/** A completion that is being sampled. */
interface Open {
  sample: PromptSample;
  request: GenerateRequest;
  text: string;
  tokens: number[];
  logprobs: number[];
  mask: number[];
  calls: number;
  isTruncated: boolean;
  isDone: boolean;
}

/**
 * Samples one completion for each of `given`, with results of the tool between turns. All ranks
 * must call it: each rank takes part in every turn, even without open completions. Rejects on all
 * ranks with DS_DATA if the tool throws, exceeds its timeout, or returns neither a string nor null.
 */
export async function sampleWithTool(
  rollouts: Rollouts,
  given: readonly { sample: PromptSample; request: GenerateRequest }[],
  how: ToolTurns,
  world: CheckpointWorld,
): Promise<Sampled[]> {
  const all = given.map(
    (item): Open => ({
      ...item,
      text: '',
      tokens: [],
      logprobs: [],
      mask: [],
      calls: 0,
      isTruncated: false,
      isDone: false,
    }),
  );
  for (let turn = 0; ; ++turn) {
    const counts = await onAllRanks(world, 'sampling rollouts', async () => {
      const open = all.filter(({ isDone }) => !isDone);
      const found = await rollouts.generate(open.map((item) => requestOf(item, how, turn)));
      await Promise.all(
        open.map(async (item, i) => {
          const [made] = required(found[i]);
          const { text, tokens, logprobs, finishReason } = required(made);
          item.text += text;
          item.tokens.push(...tokens);
          item.logprobs.push(...required(logprobs).map(({ logprob }) => logprob));
          item.mask.push(...tokens.map(() => 1));
          item.isTruncated = finishReason === 'length';
          item.isDone = item.isTruncated || turn >= how.turns;
          if (!item.isDone) await answer(item, text, turn, how);
        }),
      );
      return { open: all.filter(({ isDone }) => !isDone).length };
    });
    if (counts.every((count) => (count as { open: number }).open === 0)) break;
  }
  return all.map(({ text: content, tokens, logprobs, mask, calls, isTruncated }) => ({
    content,
    tokens,
    logprobs,
    mask,
    calls,
    isTruncated,
  }));
}

/** Returns the request for the next turn. Its seed differs from the seeds of earlier turns. */
function requestOf({ sample, request, tokens }: Open, { max }: ToolTurns, turn: number) {
  if (turn === 0) return request;
  const prompt = [...sample.promptIds, ...tokens];
  const seed = hashOf(`${request.seed} ${turn}`);
  return { ...request, prompt, seed, maxNewTokens: max - tokens.length };
}

/**
 * Calls the tool and appends its result. If the result is null or too long, the completion ends.
 */
async function answer(item: Open, content: string, turn: number, how: ToolTurns): Promise<void> {
  const result = await callTool(item, content, turn, how.tool);
  if (result === null) {
    item.isDone = true;
    return;
  }
  item.calls += 1;
  const ids = how.tokenizer.encode(result, { addSpecialTokens: false });
  if (item.tokens.length + ids.length >= how.max) {
    item.isDone = true;
    item.isTruncated = true;
    return;
  }
  item.text += result;
  for (const id of ids) {
    item.tokens.push(id);
    item.logprobs.push(0);
    item.mask.push(0);
  }
}

async function callTool(
  { sample, text: whole }: Open,
  content: string,
  turn: number,
  { of, timeout }: Required<TimedTool>,
): Promise<string | null> {
  const { prompt, columns, location } = sample;
  const failure = (fields: { expected: string; got: string; hint?: string; cause?: unknown }) =>
    new DsError({ code: 'DS_DATA', op: `tool of ${location}`, ...fields });
  const ending = new AbortController();
  let timer: NodeJS.Timeout | undefined;
  const late = new Promise<never>((_, reject) => {
    timer = setTimeout(() => {
      const hint = 'Raise `timeout` of the tool, in seconds.';
      const error = failure({ expected: `a result within ${timeout} s`, got: 'none', hint });
      ending.abort(error);
      reject(error);
    }, timerMs(timeout));
  });
  try {
    const input = { prompt, columns, content, whole, turn, signal: ending.signal };
    const result = await Promise.race([(async () => of(input))(), late]);
    if (result === null || result === undefined) return null;
    if (typeof result === 'string') return result;
    throw failure({ expected: 'a string, or null', got: formatValue(result) });
  } catch (cause) {
    if (cause instanceof DsError) throw cause;
    const got = `the error "${cause instanceof Error ? cause.message : cause}"`;
    throw failure({ expected: 'a string, or null', got, cause });
  } finally {
    clearTimeout(timer);
  }
}
