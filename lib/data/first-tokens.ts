// Batches of sequences cut to their first tokens.
import { noGrad, scope, type Tensor } from '../tensor/index.js';

/** x[:, :count], contiguous, of `x` [B, T, ..]; `x` itself where T is no more. */
export function firstTokens(x: Tensor, count: number): Tensor {
  if (x.ndim < 2 || x.size(1) <= count) return x;
  return noGrad(() => scope(() => x.narrow(1, 0, count).contiguous()));
}
