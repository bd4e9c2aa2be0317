// Element-wise functions of one tensor: powers, exponentials and activations.

import { isFloating } from '../../runtime/dtype.js';
import { valueError } from '../../runtime/input-errors.js';
import type { UnaryOp } from '../../runtime/kernels.generated.js';
import * as kernels from '../../runtime/kernels.generated.js';
import { record } from '../tape.js';
import { Tensor } from '../tensor.js';
import { copyRowMajor, recordConstant, requireTensor } from './shapes.js';

/** Returns op(x) for every element of a floating tensor with any strides. The backward reads x. */
export function unary(op: UnaryOp, x: Tensor): Tensor {
  requireTensor(op, x);
  const out = Tensor.emptyLike(x);
  kernels.unary({ in: x, out, op });
  record(op, [x], [out], [x], ([grad], sink) => {
    sink.write(0, (dx, accumulate) =>
      kernels.unaryBackward({ in: x, dout: grad, dx, op, accumulate }),
    );
  });
  return out;
}

/** Returns op(x) of a function with whole results, such as floor. Integer tensors are unchanged. */
function staircase(op: UnaryOp, x: Tensor): Tensor {
  requireTensor(op, x);
  if (!isFloating(x.dtype)) return copyRowMajor(x);
  const out = Tensor.emptyLike(x);
  kernels.unary({ in: x, out, op });
  recordConstant(op, x, out);
  return out;
}

// Operations: arithmetic; methods too.

/** Returns -x, element by element. Throws DS_DTYPE unless `x` is floating. */
export const neg = (x: Tensor): Tensor => unary('neg', x);
/**
 * Returns |x|, element by element, with gradient 0 at 0. Throws DS_DTYPE unless `x` is floating.
 */
export const abs = (x: Tensor): Tensor => unary('abs', x);
/** Returns 1 / x, element by element. Throws DS_DTYPE unless `x` is floating. */
export const reciprocal = (x: Tensor): Tensor => unary('reciprocal', x);
/**
 * Returns the largest integer up to x, element by element, in x's dtype; gradient 0. Throws
 * DS_ARGUMENT unless `x` is a tensor.
 */
export const floor = (x: Tensor): Tensor => staircase('floor', x);
/**
 * Returns the smallest integer from x on, element by element, in x's dtype; gradient 0. Throws
 * DS_ARGUMENT unless `x` is a tensor.
 */
export const ceil = (x: Tensor): Tensor => staircase('ceil', x);
/**
 * Returns the nearest integer, ties to even, element by element, in x's dtype; gradient 0. Throws
 * DS_ARGUMENT unless `x` is a tensor.
 */
export const round = (x: Tensor): Tensor => staircase('round', x);
/**
 * Returns the integer part, element by element, in x's dtype; gradient 0. Throws DS_ARGUMENT unless
 * `x` is a tensor.
 */
export const trunc = (x: Tensor): Tensor => staircase('trunc', x);

// Operations: functions; methods too.

/** Returns e to the power x, element by element. Throws DS_DTYPE unless `x` is floating. */
export const exp = (x: Tensor): Tensor => unary('exp', x);
/** Returns the natural logarithm, element by element. Throws DS_DTYPE unless `x` is floating. */
export const log = (x: Tensor): Tensor => unary('log', x);
/**
 * Returns log(1 + x), exact for small x, element by element. Throws DS_DTYPE unless `x` is
 * floating.
 */
export const log1p = (x: Tensor): Tensor => unary('log1p', x);
/**
 * Returns exp(x) - 1, exact for small x, element by element. Throws DS_DTYPE unless `x` is
 * floating.
 */
export const expm1 = (x: Tensor): Tensor => unary('expm1', x);
/** Returns the square root, element by element. Throws DS_DTYPE unless `x` is floating. */
export const sqrt = (x: Tensor): Tensor => unary('sqrt', x);
/** Returns 1 / sqrt(x), element by element. Throws DS_DTYPE unless `x` is floating. */
export const rsqrt = (x: Tensor): Tensor => unary('rsqrt', x);
/** Returns x * x, element by element. Throws DS_DTYPE unless `x` is floating. */
export const square = (x: Tensor): Tensor => unary('square', x);
/** Returns the sine of radians, element by element. Throws DS_DTYPE unless `x` is floating. */
export const sin = (x: Tensor): Tensor => unary('sin', x);
/** Returns the cosine of radians, element by element. Throws DS_DTYPE unless `x` is floating. */
export const cos = (x: Tensor): Tensor => unary('cos', x);
/** Returns the tangent of radians, element by element. Throws DS_DTYPE unless `x` is floating. */
export const tan = (x: Tensor): Tensor => unary('tan', x);
/** Returns the hyperbolic tangent, element by element. Throws DS_DTYPE unless `x` is floating. */
export const tanh = (x: Tensor): Tensor => unary('tanh', x);
/** Returns 1 / (1 + exp(-x)), element by element. Throws DS_DTYPE unless `x` is floating. */
export const sigmoid = (x: Tensor): Tensor => unary('sigmoid', x);
/**
 * Returns max(x, 0), element by element, with gradient 0 at 0. Throws DS_DTYPE unless `x` is
 * floating.
 */
export const relu = (x: Tensor): Tensor => unary('relu', x);
/** Returns x sigmoid(x), element by element. Throws DS_DTYPE unless `x` is floating. */
export const silu = (x: Tensor): Tensor => unary('silu', x);

/**
 * Returns the error function, 2 / sqrt(pi) times the integral of exp(-t t) from 0 to x, element by
 * element. Throws DS_DTYPE unless `x` is floating.
 */
export const erf = (x: Tensor): Tensor => unary('erf', x);
/**
 * Applies the Gaussian error linear unit. "tanh" is GPT-2's approximation, "none" the exact form
 * with erf.
 */
export function gelu(x: Tensor, approximate: 'tanh' | 'none' = 'none'): Tensor {
  if (approximate === 'tanh') return unary('gelu_tanh', x);
  if (approximate === 'none') return unary('gelu_erf', x);
  throw valueError('gelu', '"tanh" or "none"', approximate);
}
