// Element-wise functions of one tensor: powers, exponentials and activations.

import { DsError } from '../../errors.js';
import type { UnaryOp } from '../../runtime/kernels.generated.js';
import * as kernels from '../../runtime/kernels.generated.js';
import { phrase } from '../../runtime/phrase.js';
import { record } from '../autograd.js';
import { Tensor } from '../tensor.js';
import { requireTensor } from './shapes.js';

/** op(x) for every element; floating dtypes, any strides. The backward reads x. */
export function unary(op: UnaryOp, x: Tensor): Tensor {
  requireTensor(op, x);
  const out = Tensor.emptyLike(x);
  kernels.unary({ in: x, out, op });
  record(op, [x], [out], [x], ([grad], sink) => {
    sink.write(0, (dx, accumulate) =>
      kernels.unaryBackward({ in: x, dout: grad as Tensor, dx, op, accumulate }),
    );
  });
  return out;
}

export const neg = (x: Tensor): Tensor => unary('neg', x);
export const abs = (x: Tensor): Tensor => unary('abs', x);
export const exp = (x: Tensor): Tensor => unary('exp', x);
export const log = (x: Tensor): Tensor => unary('log', x);
export const sqrt = (x: Tensor): Tensor => unary('sqrt', x);
export const rsqrt = (x: Tensor): Tensor => unary('rsqrt', x);
export const reciprocal = (x: Tensor): Tensor => unary('reciprocal', x);
export const square = (x: Tensor): Tensor => unary('square', x);
export const sin = (x: Tensor): Tensor => unary('sin', x);
export const cos = (x: Tensor): Tensor => unary('cos', x);
export const tanh = (x: Tensor): Tensor => unary('tanh', x);
export const sigmoid = (x: Tensor): Tensor => unary('sigmoid', x);
export const relu = (x: Tensor): Tensor => unary('relu', x);
export const silu = (x: Tensor): Tensor => unary('silu', x);

/** Gaussian error linear unit; "tanh" is GPT-2's approximation, "none" the exact form with erf. */
export function gelu(x: Tensor, approximate: 'tanh' | 'none' = 'none'): Tensor {
  if (approximate === 'tanh') return unary('gelu_tanh', x);
  if (approximate === 'none') return unary('gelu_erf', x);
  throw new DsError({
    code: 'DS_ARGUMENT',
    op: 'gelu',
    expected: '"tanh" or "none"',
    got: phrase(approximate),
  });
}
