// Sparse gates: a layer keeps the largest gates of a token and sets the others to 0. Source: Gemma
// 3n.
import { erf } from '../../nn/truncated-normal.js';
import { relu, std, type Tensor } from '../../tensor/index.js';

/** Returns the value that a share of (0, 1) of a standard normal distribution does not exceed. */
export function normalQuantile(share: number): number {
  if (share < 0.5) return -normalQuantile(1 - share);
  // The distribution is concave here, so Newton's method from 0 ascends to the value.
  let value = 0;
  for (;;) {
    const missing = share - (1 + erf(value / Math.SQRT2)) / 2;
    const next = value + missing * Math.sqrt(2 * Math.PI) * Math.exp(value ** 2 / 2);
    if (!(next > value)) return value;
    value = next;
  }
}

/**
 * Returns the part of gates [.., channels] above their mean plus a multiple of their deviation; 0
 * for the rest. If the gates have a normal distribution, `share` of them are 0.
 */
export function sparsify(gates: Tensor, share: number): Tensor {
  const deviation = std(gates, { dim: -1, keepDim: true, correction: 0 });
  const limit = gates.mean({ dim: -1, keepDim: true }).add(deviation.mul(normalQuantile(share)));
  return relu(gates.sub(limit));
}
