// Computes the rows of a sampler's device tables (csrc/ops/sample.h) from rules and tokens.
import { required } from '../runtime/required.js';
import { type Ban, FOREVER } from './ban-list.js';
import type { SamplingRules } from './sampling-options.js';

/** Number of recent tokens per slot. */
export const RECENT = 64;

/** Returns true if the rules use logitBias or allowedTokens. */
export const needsBias = ({ logitBias, allowedTokens }: SamplingRules): boolean =>
  logitBias.length > 0 || allowedTokens !== null;

/** Returns true if the rules use penalties. */
export const needsCounts = (rules: SamplingRules): boolean =>
  rules.repetitionPenalty !== 1 || rules.presencePenalty !== 0 || rules.frequencyPenalty !== 0;

/** Returns the row of the table `settings`. */
export function settingsValues(rules: SamplingRules): Float32Array {
  const { temperature, topP, minP, repetitionPenalty, presencePenalty, frequencyPenalty } = rules;
  return Float32Array.of(
    temperature,
    topP,
    minP,
    repetitionPenalty,
    presencePenalty,
    frequencyPenalty,
  );
}

/** Returns the value to add to each token's score, [V]. */
export function biasValues(
  { logitBias, allowedTokens }: SamplingRules,
  vocabSize: number,
): Float32Array {
  const bias = new Float32Array(vocabSize);
  if (allowedTokens) {
    bias.fill(Number.NEGATIVE_INFINITY);
    for (const token of allowedTokens) bias[token] = 0;
  }
  for (const [token, value] of logitBias) bias[token] = required(bias[token]) + value;
  return bias;
}

/** Returns twice the count of each sampled token, plus 1 for tokens of the prompt. */
export function countValues(
  prompt: readonly number[],
  generated: readonly number[],
  vocabSize: number,
): Int32Array {
  const counts = new Int32Array(vocabSize);
  for (const token of generated) counts[token] = required(counts[token]) + 2;
  for (const token of prompt) counts[token] = required(counts[token]) | 1;
  return counts;
}

/** Returns the last tokens as a ring buffer, indexed by position modulo RECENT. */
export function recentValues(prompt: readonly number[], generated: readonly number[]): Int32Array {
  const recent = new Int32Array(RECENT).fill(-1);
  const length = prompt.length + generated.length;
  for (let position = Math.max(0, length - RECENT); position < length; ++position) {
    const token = prompt[position] ?? generated[position - prompt.length];
    recent[position % RECENT] = required(token);
  }
  return recent;
}

/** Returns the bans of a slot: bad words, and end tokens before minTokens. */
export function listBans({ badWords, minTokens }: SamplingRules, ends: readonly number[]): Ban[] {
  const words = badWords.map((tokens) => ({ tokens, until: FOREVER }));
  const until = Math.min(minTokens, FOREVER);
  const early = until > 0 ? ends.map((end) => ({ tokens: [end], until })) : [];
  return [...words, ...early];
}
