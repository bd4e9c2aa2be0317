// The labels of texts, with their scores, from the outputs of a classifier.
import type { Tokenizer } from '../../text/index.js';
import type { ProblemType } from './task.js';

/** Options of classify(). */
export interface ClassifyOptions {
  /** Encodes the texts. Default: the tokenizer of the model's folder. */
  tokenizer?: Tokenizer;
  /** Number of texts in a batch. Default: 32. */
  batchSize?: number;
  /** Maximum tokens of a text; longer texts are cut. Default: the model's limit. */
  maxLength?: number;
}

/** The labels of a text. */
export interface Classification {
  /** Name of the label with the largest score. */
  label: string;
  /** Score of this label. */
  score: number;
  /**
   * Scores of all labels by name: probabilities, which add up to 1 unless a text may have several
   * labels. For a head with one output or for regression, the outputs.
   */
  scores: Record<string, number>;
}

/** Returns the scores of a row of logits, one for each label. */
export function scoreLogits(
  logits: Float32Array,
  labels: readonly string[],
  problem: ProblemType | null,
): Classification {
  const scores = probabilities(logits, problem);
  const best = scores.indexOf(Math.max(...scores));
  const names = labels.map((name, i): [string, number] => [name, scores[i] as number]);
  return {
    label: labels[best] as string,
    score: scores[best] as number,
    scores: Object.fromEntries(names),
  };
}

function probabilities(logits: Float32Array, problem: ProblemType | null): number[] {
  const values = [...logits];
  if (problem === 'regression' || values.length === 1) return values;
  if (problem === 'multi_label_classification') return values.map((x) => 1 / (1 + Math.exp(-x)));
  const max = Math.max(...values);
  const shares = values.map((x) => Math.exp(x - max));
  const sum = shares.reduce((total, share) => total + share, 0);
  return shares.map((share) => share / sum);
}
