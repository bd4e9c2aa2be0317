// Metrics of samples of tokens: how long they are, and how rare their words.
// Source: DeepSpeed Data Efficiency (Li et al. 2022), with the numbers of its analyze_data.py.

import { formatValue } from '../runtime/format-value.js';
import { dataError } from '../runtime/refused.js';
import { required } from '../runtime/required.js';

/** Computes the metric of a sample. Some metrics read all samples first, in a first pass. */
export interface SampleMetric {
  /** Called for every sample before the first value; absent if not needed. */
  survey?(sample: unknown, index: number): void;
  value(sample: unknown, index: number): unknown;
}

/** Tokens of the sample. */
export const seqlen: SampleMetric = {
  value: (sample, index) => tokensOf(sample, index).length,
};

/** Token numbers are below it, which bounds the counts. */
const MOST_TOKENS = 2 ** 27;

/**
 * The sum of -log p over the tokens of the sample, p being a token's share of all, rounded down.
 */
export class VocabularyRarity implements SampleMetric {
  private counts = new Float64Array(2 ** 16);
  private total = 0;

  survey(sample: unknown, index: number): void {
    const tokens = tokensOf(sample, index);
    for (let i = 0; i < tokens.length; ++i) {
      const token = required(tokens[i]);
      if (token >= this.counts.length) this.grow(token);
      this.counts[token] = required(this.counts[token]) + 1;
    }
    this.total += tokens.length;
  }

  value(sample: unknown, index: number): number {
    const tokens = tokensOf(sample, index);
    let sum = 0;
    for (let i = 0; i < tokens.length; ++i) {
      sum -= Math.log(required(this.counts[required(tokens[i])]) / this.total);
    }
    return Math.floor(sum);
  }

  private grow(token: number): void {
    const counts = new Float64Array(2 ** Math.ceil(Math.log2(token + 1)));
    counts.set(this.counts);
    this.counts = counts;
  }
}

/** Names of the fields with a sample's tokens. */
const FIELDS = ['tokens', 'ids', 'input_ids'];

/** Throws DS_DATA for a sample without tokens. */
function tokensOf(sample: unknown, index: number): ArrayLike<number> {
  const fields = (sample ?? {}) as Record<string, unknown>;
  const own = isList(sample) ? sample : FIELDS.map((name) => fields[name]).find(isList);
  const mask = fields.attention_mask;
  const tokens = own && isList(mask) ? Array.from(own).filter((_, i) => mask[i]) : own;
  if (!tokens) {
    const expected = `tokens: a typed array, alone or as ${FIELDS.join(', ')}`;
    const hint = 'Give a function (sample, index) => number in place of the name of the metric.';
    throw dataError(`data.analyze, sample ${index}`, expected, formatValue(sample), hint);
  }
  for (let i = 0; i < tokens.length; ++i) {
    const token = required(tokens[i]);
    if (Number.isInteger(token) && token >= 0 && token < MOST_TOKENS) continue;
    const location = `data.analyze, sample ${index}, token ${i}`;
    throw dataError(location, `a number of [0, ${MOST_TOKENS})`, String(token));
  }
  return tokens;
}

function isList(value: unknown): value is ArrayLike<number> {
  return Array.isArray(value) || (ArrayBuffer.isView(value) && !(value instanceof DataView));
}
