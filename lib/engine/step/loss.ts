// The loss of a micro-batch: its checks and its backward.
import { DsError } from '../../errors.js';
import { formatValue } from '../../runtime/format-value.js';
import { valueError } from '../../runtime/input-errors.js';
import * as kernels from '../../runtime/kernels.generated.js';
import { backward, held, Tensor } from '../../tensor/index.js';

/** Runs the backward of `loss` times `factor`: adds gradients to the leaves below it. */
export function runBackward(loss: Tensor, factor: number): void {
  const seed = held(() => Tensor.emptyLike(loss));
  kernels.fill({ out: seed, value: factor });
  try {
    backward(loss, [seed]);
  } finally {
    seed.release();
  }
}

/** Throws DS_ARGUMENT unless `loss` is a tensor, DS_SHAPE unless it is one f32 element. */
export function requireLoss(op: string, loss: Tensor): void {
  if (!(loss instanceof Tensor)) {
    throw new DsError({
      code: 'DS_ARGUMENT',
      op,
      expected: 'a loss: the tensor that forward() has computed',
      got: formatValue(loss),
      hint: 'If the model returns several tensors, pass only the loss.',
    });
  }
  if (loss.numel === 1 && loss.dtype === 'f32') return;
  throw new DsError({
    code: 'DS_SHAPE',
    op,
    expected: 'a loss of one f32 element',
    got: `[${loss.shape.join(', ')}] ${loss.dtype}`,
    hint: "Reduce it first, for example with .mean(), and cast it with .to('f32').",
  });
}

/**
 * Throws DS_ARGUMENT unless `factor` is finite and positive, so that losses can be multiplied and
 * gradients divided by it.
 */
export function requireFactor(op: string, factor: number): void {
  if (Number.isFinite(factor) && factor > 0) return;
  throw valueError(op, 'a finite number above 0', factor);
}
