// Log-probabilities of whole rows, for losses that compare answers.
import { concat, scope, type Tensor } from '../tensor/index.js';

/** The loss of hidden states [1, T, channels] and targets [1, T], summed. */
type SumOf = (x: Tensor, targets: Tensor) => Tensor;

/**
 * The sums of the log-probabilities of targets [B, T] by row, [B] f32; ignored targets do not
 * count. The head runs once for each row: its gradient is the same for all tokens of a row.
 */
export function rowLogProbs(x: Tensor, targets: Tensor, sumOf: SumOf): Tensor {
  return scope(() => {
    const rows = Array.from({ length: x.size(0) }, (_, row) => {
      const [own, wanted] = [x, targets].map((one) => one.narrow(0, row, 1).contiguous());
      return sumOf(own as Tensor, wanted as Tensor).reshape([1]);
    });
    return concat(rows, 0).neg();
  });
}
