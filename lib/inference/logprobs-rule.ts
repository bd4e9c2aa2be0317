// Replaces the log-probabilities of the sampling kernel by others.
import { concat, logsumexp, Tensor } from '../tensor/index.js';

/** How a sampler computes log-probabilities of its tokens. */
export interface LogprobsRule {
  /** Divides scores by the temperature first, as rollouts need. Alternatives stay raw. */
  readonly isScaled?: boolean;
  /** Computes the bits of tokenLogProbs() of a model. */
  readonly isInvariant?: boolean;
}

/**
 * Returns log-probabilities of `tokens` [S] by scores [S, V], [S, 2] with the log-sum-exp of each
 * row. Returns null if those of the kernel, by raw scores, serve.
 */
export function logprobsBy(
  { isScaled = false, isInvariant = false }: LogprobsRule,
  scores: Tensor,
  tokens: Tensor,
  temperatures: readonly number[],
): Tensor | null {
  const given = temperatures.map((temperature) => (isScaled ? temperature || 1 : 1));
  if (!isInvariant && given.every((value) => value === 1)) return null;
  const { device } = scores;
  const shape = [given.length, 1];
  const column = (of: (one: number) => number): Tensor =>
    Tensor.from(Float32Array.from(given, of), { shape, device });
  const wide = scores.to('f32');
  // tokenLogProbs() multiplies by the inverse temperature.
  const y = isInvariant
    ? wide.mul(column((value) => 1 / value))
    : wide.div(column((value) => value));
  const sum = logsumexp(y, -1).reshape(shape);
  const at = tokens.clamp(0).to('i64').reshape(shape);
  const ownTensor = isInvariant ? y.logSoftmax(-1).gather(-1, at) : y.gather(-1, at).sub(sum);
  return concat([ownTensor, sum], 1).contiguous();
}
