// Spread and size: variance, standard deviation, norms and the logarithm of a sum of exponentials.

import { DsError } from '../../errors.js';
import { type DType, isFloating } from '../../runtime/dtype.js';
import { valueError } from '../../runtime/input-errors.js';
import { namesOf, readOptions } from '../../runtime/options.js';
import { requireFinite } from '../../runtime/require-number.js';
import { required } from '../../runtime/required.js';
import { describe, numel } from '../../runtime/view.js';
import { scope } from '../scope.js';
import { noGrad } from '../tape.js';
import type { Tensor } from '../tensor.js';
import { cast } from './creation.js';
import { add, eq, mul, ne, pow, scale, sub, where } from './elementwise.js';
import {
  argmax,
  max,
  mean,
  min,
  type ReduceOptions,
  readReduction,
  reductionOf,
  sum,
} from './reduce.js';
import { normalizeDims, requireTensor } from './shapes.js';
import { abs, exp, log, neg, sqrt, square } from './unary.js';
import { reshape } from './views.js';

/** Options of variance() and std(). */
export interface SpreadOptions extends ReduceOptions {
  /**
   * Subtracted from the number of elements. Default: 1 (Bessel); 0 is the variance of the elements
   * themselves.
   */
  correction?: number;
}

/** The options of variance() and std(), or only the dims. */
export type Spread = SpreadOptions | number | readonly number[];

const isDims = (given: unknown): given is number | readonly number[] =>
  typeof given === 'number' || Array.isArray(given);

function requireFloat(op: string, x: Tensor): void {
  requireTensor(op, x);
  if (isFloating(x.dtype)) return;
  throw new DsError({
    code: 'DS_DTYPE',
    op,
    expected: 'a floating dtype',
    got: describe(x),
    hint: `Cast it: .to('f32').${op}().`,
  });
}

/** Returns body(x), computed in f32 for narrower dtypes and rounded once at the end. */
function computeWide(x: Tensor, body: (x: Tensor) => Tensor): Tensor {
  const dtype: DType = x.dtype === 'f64' ? 'f64' : 'f32';
  return scope(() => cast(body(cast(x, dtype)), x.dtype));
}

// Operations: reduction; methods too.

/**
 * Returns the mean square distance from the mean over `dims`, divided by count - correction; NaN
 * with too few elements. Two passes, f32 or f64 inside. Floating dtypes. Throws DS_DTYPE, DS_SHAPE,
 * DS_ARGUMENT. As torch.var.
 */
export function variance(x: Tensor, options: Spread = {}): Tensor {
  return spread('var', x, options);
}

export { variance as var };

/** Returns the square root of the variance; see variance. Its gradient at 0 is 0. As torch.std. */
export function std(x: Tensor, options: Spread = {}): Tensor {
  return spread('std', x, options);
}

function spread(op: 'var' | 'std', x: Tensor, given: Spread): Tensor {
  requireFloat(op, x);
  const options: SpreadOptions = isDims(given)
    ? { dims: given }
    : readOptions<SpreadOptions>(op, given, namesOf.SpreadOptions);
  const { correction = 1, ...reduction } = options;
  requireFinite(`${op} correction`, correction);
  const { dims, keepDim } = readReduction(op, reduction);
  const over = normalizeDims(op, dims, x.ndim);
  const count = numel(over.map((d) => required(x.shape[d])));
  return computeWide(x, (wide) => {
    const deviations = sub(wide, mean(wide, { dims: over, keepDim: true }));
    const total = sum(square(deviations), { dims: over, keepDim });
    const result = scale(total, 1 / Math.max(0, count - correction));
    return op === 'std' ? root(result) : result;
  });
}

/** Returns nonnegative values to a power; the gradient at 0 is 0 instead of infinite. */
function root(x: Tensor, power = 0.5): Tensor {
  const isZero = eq(x, 0);
  const safe = where(isZero, 1, x);
  return where(isZero, 0, power === 0.5 ? sqrt(safe) : pow(safe, power));
}

/** Returns `sizes` to the power p. The gradient at 0, infinite for p below 1, is 0. */
function powerOf(sizes: Tensor, p: number): Tensor {
  if (p >= 1) return pow(sizes, p);
  const isZero = eq(sizes, 0);
  return where(isZero, 0 ** p, pow(where(isZero, 1, sizes), p));
}

/**
 * Returns the p-norm over `dims`: (sum |x|^p)^(1 / p). p may be any number, Infinity (largest
 * magnitude), -Infinity (smallest), 0 (number of nonzeros) or "fro" (2). f32 or f64 inside;
 * floating dtypes. If the norm is 0 its gradient is 0, as in PyTorch. Throws DS_DTYPE, DS_ARGUMENT,
 * DS_SHAPE.
 */
export function norm(
  x: Tensor,
  p: number | 'fro' = 2,
  options: ReduceOptions | number | readonly number[] = {},
): Tensor {
  requireFloat('norm', x);
  const power = p === 'fro' ? 2 : p;
  if (typeof power !== 'number' || Number.isNaN(power)) {
    const expected = 'p: a number, Infinity, -Infinity or "fro"';
    const hint = 'Options come after p: norm(x, 2, { dims: 1 }).';
    throw valueError('norm', expected, p, hint);
  }
  const over = readReduction('norm', options);
  return computeWide(x, (wide) => {
    if (power === 2) return root(sum(square(wide), over));
    if (power === 0) return sum(cast(ne(wide, 0), wide.dtype), over);
    const sizes = abs(wide);
    if (power === 1) return sum(sizes, over);
    if (power === Number.POSITIVE_INFINITY) return max(sizes, over);
    if (power === Number.NEGATIVE_INFINITY) return min(sizes, over);
    return root(sum(powerOf(sizes, power), over), 1 / power);
  });
}

/** Returns log(sum(exp(x))) over `dims`, without overflow; floating dtypes. */
export function logsumexp(
  x: Tensor,
  options: ReduceOptions | number | readonly number[] = {},
): Tensor {
  requireFloat('logsumexp', x);
  const { over, shape } = reductionOf('logsumexp', x, options);
  return computeWide(x, (wide) => {
    const top = noGrad(() => {
      const maximum = max(wide, { dims: over, keepDim: true });
      return where(eq(abs(maximum), Number.POSITIVE_INFINITY), 0, maximum);
    });
    const out = add(log(sum(exp(sub(wide, top)), { dims: over, keepDim: true })), top);
    return reshape(out, shape);
  });
}

/**
 * Returns the index of the first minimum along `dim`, i64, without that dim; NaN counts as the
 * minimum.
 */
export function argmin(x: Tensor, dim = -1): Tensor {
  requireTensor('argmin', x);
  return noGrad(() =>
    scope(() => argmax(isFloating(x.dtype) ? neg(x) : mul(cast(x, 'i64'), -1), dim)),
  );
}
