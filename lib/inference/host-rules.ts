// Computes penalties and bans of one sequence on the host, for beam search.
import { required } from '../runtime/required.js';
import type { SamplingRules } from './sampling-options.js';

const { fround } = Math;

/** Penalized scores of tokens. */
interface PenalizedTokens {
  /** Tokens with a changed score. */
  readonly tokens: readonly number[];
  /** Returns the penalized value of `score`. The operations match csrc/ops/sample.h. */
  of(token: number, score: number): number;
}

/** Returns the penalties of `rules` after `prompt` and `tokens`. */
export function penalizedScore(
  rules: SamplingRules,
  prompt: readonly number[],
  tokens: readonly number[],
): PenalizedTokens {
  const { repetitionPenalty, presencePenalty, frequencyPenalty } = rules;
  const sampled = new Map<number, number>();
  for (const token of tokens) sampled.set(token, (sampled.get(token) ?? 0) + 1);
  const seen = new Set(repetitionPenalty === 1 ? [] : [...prompt, ...tokens]);
  const countedTokens = presencePenalty === 0 && frequencyPenalty === 0 ? [] : sampled.keys();
  return {
    tokens: [...new Set([...seen, ...countedTokens])],
    of(token, score) {
      const penalty = fround(repetitionPenalty);
      const repeated = fround(score < 0 ? score * penalty : score / penalty);
      const unpenalized = seen.has(token) ? repeated : score;
      const count = sampled.get(token) ?? 0;
      if (count === 0) return unpenalized;
      const often = fround(unpenalized - fround(fround(frequencyPenalty) * count));
      return fround(often - fround(presencePenalty));
    },
  };
}

/**
 * Returns the tokens that must not come next: ends of bad words, and end tokens before minTokens.
 */
export function bannedTokens(
  { badWords, minTokens }: SamplingRules,
  text: {
    prompt: readonly number[];
    tokens: readonly number[];
    ends: ReadonlySet<number>;
  },
): ReadonlySet<number> {
  const { prompt, tokens, ends } = text;
  const bans = new Set(tokens.length < minTokens ? ends : []);
  const length = prompt.length + tokens.length;
  const at = (index: number) => prompt[index] ?? tokens[index - prompt.length];
  for (const word of badWords) {
    const before = word.length - 1;
    const starts = length - before;
    if (starts < 0) continue;
    if (word.slice(0, before).every((token, i) => at(starts + i) === token)) {
      bans.add(required(word[before]));
    }
  }
  return bans;
}
