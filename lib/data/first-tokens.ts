// Shortens batches of sequences to their first tokens.
import { noGrad, scope, type Tensor } from '../tensor/index.js';

/**
 * Returns the first `count` tokens of each row of `x` [B, T, ...], contiguous; `x` itself if T <=
 * count.
 */
export function takeFirstTokens(x: Tensor, count: number): Tensor {
  if (x.ndim < 2 || x.size(1) <= count) return x;
  return noGrad(() => scope(() => x.narrow(1, 0, count).contiguous()));
}
