// Computes logprobs that differ from those of the sampling kernel.
import { concat, logsumexp, Tensor } from '../tensor/index.js';

/** How a sampler computes the logprobs of its tokens. */
export interface LogprobsRule {
  /** Divides scores by the temperature, as rollouts need. Alternatives use raw scores. */
  readonly isScaled?: boolean;
  /** Computes the same bits as a model's tokenLogProbs(). */
  readonly isInvariant?: boolean;
}

/**
 * Returns the logprobs of `tokens` [S] and the log-sum-exp of each row as [S, 2], from scores [S,
 * V]. Returns null if the kernel's own logprobs, of raw scores, are right.
 */
export function computeLogprobs(
  { isScaled = false, isInvariant = false }: LogprobsRule,
  scores: Tensor,
  tokens: Tensor,
  temperatures: readonly number[],
): Tensor | null {
  const divisors = temperatures.map((temperature) => (isScaled ? temperature || 1 : 1));
  if (!isInvariant && divisors.every((value) => value === 1)) return null;
  const { device } = scores;
  const shape = [divisors.length, 1];
  const column = (of: (one: number) => number): Tensor =>
    Tensor.from(Float32Array.from(divisors, of), { shape, device });
  const wide = scores.to('f32');
  // tokenLogProbs() multiplies by the inverse temperature.
  const y = isInvariant
    ? wide.mul(column((value) => 1 / value))
    : wide.div(column((value) => value));
  const sum = logsumexp(y, -1).reshape(shape);
  const at = tokens.clamp(0).to('i64').reshape(shape);
  const tokenLogprobs = isInvariant ? y.logSoftmax(-1).gather(-1, at) : y.gather(-1, at).sub(sum);
  return concat([tokenLogprobs, sum], 1).contiguous();
}
