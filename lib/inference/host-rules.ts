// Penalties and bans of one text, computed on the host: for texts that are compared as a whole.
import type { SamplingRules } from './sampling-options.js';

const { fround } = Math;

/** Scores of tokens that a text has already. */
export interface Penalized {
  /** The tokens whose score changes. */
  readonly tokens: readonly number[];
  /** The score of a token, which was `score`; the same steps as in csrc/ops/sample.h. */
  of(token: number, score: number): number;
}

/** What the penalties of `rules` do to the tokens behind `prompt` and `tokens`. */
export function penalizedScore(
  rules: SamplingRules,
  prompt: readonly number[],
  tokens: readonly number[],
): Penalized {
  const { repetitionPenalty, presencePenalty, frequencyPenalty } = rules;
  const sampled = new Map<number, number>();
  for (const token of tokens) sampled.set(token, (sampled.get(token) ?? 0) + 1);
  const seen = new Set(repetitionPenalty === 1 ? [] : [...prompt, ...tokens]);
  const counted = presencePenalty === 0 && frequencyPenalty === 0 ? [] : sampled.keys();
  return {
    tokens: [...new Set([...seen, ...counted])],
    of(token, score) {
      const penalty = fround(repetitionPenalty);
      const repeated = fround(score < 0 ? score * penalty : score / penalty);
      const kept = seen.has(token) ? repeated : score;
      const count = sampled.get(token) ?? 0;
      if (count === 0) return kept;
      const often = fround(kept - fround(fround(frequencyPenalty) * count));
      return fround(often - fround(presencePenalty));
    },
  };
}

/** Tokens that may not follow: those that end a bad word, and those that end the text too early. */
export function stepBans(
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
  const at = (place: number) => prompt[place] ?? tokens[place - prompt.length];
  for (const word of badWords) {
    const before = word.length - 1;
    const starts = length - before;
    if (starts < 0) continue;
    if (word.slice(0, before).every((token, i) => at(starts + i) === token)) {
      bans.add(word[before] as number);
    }
  }
  return bans;
}
