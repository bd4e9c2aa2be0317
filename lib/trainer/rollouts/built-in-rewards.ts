// Reward functions for common tasks: accuracy, format, length, repetition, and reward models.
import { DecoderTask } from '../../models/tasks/decoder-task.js';
import { TaskModel } from '../../models/tasks/task-model.js';
import { argumentError, dataError, valueError } from '../../runtime/input-errors.js';
import { isObject } from '../../runtime/is-object.js';
import { namesOf, readOptions } from '../../runtime/options.js';
import { requireFinite, requireInteger } from '../../runtime/require-number.js';
import { noGrad, scope, Tensor } from '../../tensor/index.js';
import type { ChatMessage, Tokenizer } from '../../text/index.js';
import type { Score } from '../methods/advantages.js';
import type { Reward, RewardInput } from './reward.js';

export { type WorkerOptions, worker } from './worker-reward.js';

/**
 * A reward function: 1 if the answer in a completion equals the answer in the column `solution`,
 * else 0. Without this column, it reads the column `answer`. Returns null if the solution contains
 * no answer. An answer is the last \boxed{...}, or else the text after the last "####", or else the
 * last number. Numbers are compared by value.
 */
export function accuracy(given: RewardInput): Score[] {
  const { completions, columns } = read('rewards.accuracy', given);
  const { answer, solution = answer } = columns;
  if (!solution) {
    const expected = 'a column "solution" or "answer" in the rows of prompts';
    const hint = 'Rename the column with the right answer, or write a reward function of your own.';
    throw dataError('rewards.accuracy', expected, Object.keys(columns).join(', ') || 'none', hint);
  }
  return completions.map(({ content }, i) => {
    const wanted =
      answerIn(String(solution[i] ?? '')) ?? (String(solution[i] ?? '').trim() || null);
    if (wanted === null) return null;
    const found = answerIn(content);
    return found !== null && isSame(found, wanted) ? 1 : 0;
  });
}

/**
 * Returns `given`. Throws DS_ARGUMENT unless it is an input of a reward function, because a program
 * may call a reward function itself.
 */
function read(op: string, given: RewardInput): RewardInput {
  const { completions, columns } = given ?? {};
  if (Array.isArray(completions) && isObject(columns)) return given;
  throw valueError(op, 'an object with `completions` and `columns`', given);
}

/** Returns the answer in a text, or null. */
function answerIn(text: string): string | null {
  const boxed = boxedIn(text);
  if (boxed !== null) return boxed;
  const marked = /####\s*([^\n]+)(?![\s\S]*####)/.exec(text)?.[1];
  if (marked) return marked.trim();
  return text.match(/-?\d[\d,]*(?:\.\d+)?(?:\/\d+)?/g)?.at(-1) ?? null;
}

/**
 * Returns the content of the last \boxed{...}, which may contain nested braces; null without one.
 */
function boxedIn(text: string): string | null {
  const start = text.lastIndexOf('\\boxed{');
  if (start < 0) return null;
  const first = start + '\\boxed{'.length;
  let depth = 1;
  for (let i = first; i < text.length; ++i) {
    if (text[i] === '{') depth += 1;
    if (text[i] === '}') depth -= 1;
    if (depth === 0) return text.slice(first, i).trim();
  }
  return null;
}

function isSame(a: string, b: string): boolean {
  const [x, y] = [numberIn(a), numberIn(b)];
  if (x !== null && y !== null) return Math.abs(x - y) <= 1e-9 * Math.max(1, Math.abs(y));
  const plain = (text: string): string => text.replaceAll(/[\s$]/g, '').toLowerCase();
  return plain(a) === plain(b);
}

/** Returns the value of a number or a fraction; null for other texts. */
function numberIn(text: string): number | null {
  const plain = text.replaceAll(/[\s,$%]/g, '').replace(/\.$/, '');
  const fraction = /^(-?\d+(?:\.\d+)?)\/(\d+(?:\.\d+)?)$/.exec(plain);
  if (fraction) return Number(fraction[1]) / Number(fraction[2]);
  return /^-?\d+(?:\.\d+)?$/.test(plain) ? Number(plain) : null;
}

const THOUGHT = /^<think>(?!.*<think>)(.*?)<\/think>.*$/s;

/**
 * A reward function, as in TRL: 1 if a completion is <think>...</think> with an answer after it,
 * else 0.
 */
export function format(given: RewardInput): Score[] {
  const { completions } = read('rewards.format', given);
  return completions.map(({ content }) => (THOUGHT.test(content) ? 1 : 0));
}

/** Options of overlong(). */
export interface OverlongOptions {
  /** Number of tokens of a completion with the reward -1. */
  limit: number;
  /** Number of tokens before the limit over which the reward falls from 0 to -1. */
  cache: number;
}

/**
 * Returns a reward function that gives 0 to short completions. Over the last `cache` tokens before
 * `limit` the reward falls to -1. Throws DS_ARGUMENT unless both are integers of at least 1.
 * Source: Yu et al. 2025 (DAPO).
 */
export function overlong(given: OverlongOptions): Reward {
  const { limit, cache } = readOptions('rewards.overlong', given, namesOf.OverlongOptions);
  requireInteger('rewards.overlong limit', limit, 1);
  requireInteger('rewards.overlong cache', cache, 1);
  const of: Reward = ({ completions }) =>
    completions.map(({ tokens: { length } }) => {
      if (length <= limit - cache) return 0;
      return length <= limit ? -(length - limit + cache) / cache : -1;
    });
  return nameReward('overlong', of);
}

/** Options of repetition(). */
export interface RepetitionOptions {
  /** Number of words of a part. Default: 3. */
  size?: number;
  /** Reward of a text that only repeats one part. Default: -1. */
  penalty?: number;
}

/**
 * Returns a reward function: `penalty` times the fraction of parts of `size` words that are
 * repetitions. Throws DS_ARGUMENT unless `size` is an integer of at least 1 and `penalty` is at
 * most 0. Source: Yeo et al. 2025.
 */
export function repetition(given: RepetitionOptions = {}): Reward {
  const { size = 3, penalty = -1 } = readOptions(
    'rewards.repetition',
    given,
    namesOf.RepetitionOptions,
  );
  requireInteger('rewards.repetition size', size, 1);
  requireFinite('rewards.repetition penalty', penalty, Number.NEGATIVE_INFINITY, 0);
  const of: Reward = ({ completions }) =>
    completions.map(({ content }) => {
      const words = content.toLowerCase().split(/\s+/).filter(Boolean);
      const count = words.length - size + 1;
      if (count < 1) return 0;
      const parts = Array.from({ length: count }, (_, i) => words.slice(i, i + size).join(' '));
      return (1 - new Set(parts).size / count) * penalty;
    });
  return nameReward('repetition', of);
}

/** Options of model(). */
export interface RewardModelOptions {
  /** A classifier with one label. It stays on its device. */
  model: TaskModel;
  /** Tokenizer of the reward model. Its chat template formats messages. */
  tokenizer: Tokenizer;
  /** Number of completions in a batch. Default: 8. */
  batchSize?: number;
}

/**
 * Returns a reward function that returns the score of a reward model for prompt and completion.
 * Throws DS_ARGUMENT unless `model` is a classifier with one label.
 */
export function model(given: RewardModelOptions): Reward {
  const op = 'rewards.model';
  const {
    model: classifier,
    tokenizer,
    batchSize = 8,
  } = readOptions(op, given, namesOf.RewardModelOptions);
  if (!(classifier instanceof TaskModel))
    throw valueError(`${op} model`, 'a classifier', classifier);
  if (classifier.task !== 'sequence-classification' || classifier.labels.length !== 1) {
    throw argumentError(
      `${op} model`,
      'a classifier with one label',
      `${classifier.labels.length} labels`,
    );
  }
  requireInteger(`${op} batchSize`, batchSize, 1);
  const pad = classifier.padTokenId ?? tokenizer.padId ?? tokenizer.eosId ?? 0;
  // A batch of rows with different lengths needs a padding token.
  if (classifier instanceof DecoderTask) classifier.padTokenId ??= pad;
  return nameReward('reward_model', ({ prompts, completions }) => {
    const texts = prompts.map((prompt, i) =>
      idsOf(tokenizer, prompt, completions[i]?.content ?? '').subarray(0, classifier.maxSeq),
    );
    classifier.eval();
    const scores: number[] = [];
    for (let from = 0; from < texts.length; from += batchSize) {
      scores.push(...scoresOf(classifier, texts.slice(from, from + batchSize), pad));
    }
    return scores;
  });
}

function idsOf(
  tokenizer: Tokenizer,
  prompt: string | readonly ChatMessage[],
  content: string,
): Int32Array {
  if (typeof prompt === 'string') return tokenizer.encode(prompt + content);
  return tokenizer.applyChatTemplate([...prompt, { role: 'assistant', content }]).ids;
}

function scoresOf(classifier: TaskModel, rows: readonly Int32Array[], pad: number): number[] {
  const width = Math.max(1, ...rows.map(({ length }) => length));
  const shape = [rows.length, width];
  const [ids, mask] = [
    new Int32Array(rows.length * width).fill(pad),
    new Int32Array(rows.length * width),
  ];
  for (const [row, own] of rows.entries()) {
    ids.set(own, row * width);
    mask.fill(1, row * width, row * width + own.length);
  }
  const device = classifier.parameters()[0]?.device;
  return noGrad(() =>
    scope(() => {
      const inputs = { mask: Tensor.from(mask, { shape, device }) };
      const out = classifier.call(Tensor.from(ids, { shape, device }), inputs);
      return out.to('f32').reshape([-1]).toArray();
    }),
  );
}

function nameReward(name: string, of: Reward): Reward {
  Object.defineProperty(of, 'name', { value: name });
  return of;
}
