// Logical operations: any, all, finiteness, masks and limits. Results are bool without a gradient
// unless documented.

import { DsError } from '../../errors.js';
import { isFloating } from '../../runtime/dtype.js';
import { formatValue } from '../../runtime/format-value.js';
import { argumentError } from '../../runtime/input-errors.js';
import type { CompareOp } from '../../runtime/kernels.generated.js';
import * as kernels from '../../runtime/kernels.generated.js';
import { namesOf, readOptions } from '../../runtime/options.js';
import { leading } from '../../runtime/required.js';
import { describe, numel, type View } from '../../runtime/view.js';
import { scope } from '../scope.js';
import { noGrad } from '../tape.js';
import { Tensor } from '../tensor.js';
import { arange, cast, to } from './creation.js';
import { compare, eq, limitBy, ne, sub, where } from './elementwise.js';
import type { Operand } from './operands.js';
import { type Reduction, reductionOf } from './reduce.js';
import {
  broadcastShape,
  constant,
  expandView,
  recordConstant,
  requireSameDevice,
  requireTensor,
  shapeError,
  viewOf,
} from './shapes.js';
import { unary } from './unary.js';
import { unsqueeze } from './views.js';

/** Runs body() without recording, and frees its temporaries. */
const computeUnrecorded = (body: () => Tensor): Tensor => noGrad(() => scope(body));

/** Returns a and b, or a or b, as bool over the broadcast shape. */
function combineTruth(op: string, a: Tensor, b: Tensor, when: 'and' | 'or'): Tensor {
  requireSameDevice(op, a, b);
  return computeUnrecorded(() => {
    const [x, y] = [cast(a, 'bool'), cast(b, 'bool')];
    const shape = broadcastShape(op, x.shape, y.shape);
    const out = Tensor.empty(shape, 'bool', x.device);
    const fixed = expandView(constant(when === 'or' ? 1 : 0, 'bool', x.device), shape);
    const [condition, other] = [expandView(x, shape), expandView(y, shape)];
    if (when === 'or') kernels.where({ condition, a: fixed, b: other, out });
    else kernels.where({ condition, a: other, b: fixed, out });
    return out;
  });
}

// Operations: comparison; methods too.

/**
 * Returns whether both are nonzero, broadcast; any dtypes. Throws DS_SHAPE or DS_DEVICE if the
 * tensors do not fit together.
 */
export const logicalAnd = (a: Tensor, b: Tensor): Tensor => combineTruth('logicalAnd', a, b, 'and');
/** Returns whether at least one is nonzero, broadcast; any dtypes. */
export const logicalOr = (a: Tensor, b: Tensor): Tensor => combineTruth('logicalOr', a, b, 'or');

/** Returns whether exactly one is nonzero, broadcast; any dtypes. */
export function logicalXor(a: Tensor, b: Tensor): Tensor {
  requireSameDevice('logicalXor', a, b);
  return computeUnrecorded(() => ne(cast(a, 'bool'), cast(b, 'bool')));
}

/** Returns whether elements are 0. */
export function logicalNot(x: Tensor): Tensor {
  requireTensor('logicalNot', x);
  return computeUnrecorded(() => eq(x, 0));
}

/** Reduces truth values, as bytes, over dims; `empty` is the result without elements. */
function reduceTruth(op: 'any' | 'all', x: Tensor, options: Reduction): Tensor {
  requireTensor(op, x);
  const { kept, shape } = reductionOf(op, x, options);
  return computeUnrecorded(() => {
    const out = Tensor.empty(shape, 'bool', x.device);
    if (x.numel === 0) kernels.fill({ out, value: op === 'all' ? 1 : 0 });
    else {
      const bytes = (view: View): View => ({
        ...viewOf(view, view.shape, view.strides),
        dtype: 'u8',
      });
      const [from, into] = [bytes(cast(x, 'bool')), bytes(viewOf(out, kept))];
      kernels.reduce({ in: from, out: into, op: op === 'any' ? 'max' : 'min', accumulate: false });
    }
    return out;
  });
}

/** Returns whether any element over `dims` is nonzero; false without elements. */
export function any(x: Tensor, options: Reduction = {}): Tensor {
  return reduceTruth('any', x, options);
}

/** Returns whether all elements over `dims` are nonzero; true without elements. */
export function all(x: Tensor, options: Reduction = {}): Tensor {
  return reduceTruth('all', x, options);
}

/** Returns whether elements are NaN. */
export function isnan(x: Tensor): Tensor {
  requireTensor('isnan', x);
  return compare('ne', x, x);
}

/** Returns whether elements are an infinity of either sign. */
export function isinf(x: Tensor): Tensor {
  requireTensor('isinf', x);
  if (!isFloating(x.dtype)) return computeUnrecorded(() => ne(x, x));
  return computeUnrecorded(() => eq(unary('abs', x), Number.POSITIVE_INFINITY));
}

/** Returns whether elements are neither infinite nor NaN. */
export function isfinite(x: Tensor): Tensor {
  requireTensor('isfinite', x);
  if (!isFloating(x.dtype)) return computeUnrecorded(() => eq(x, x));
  return computeUnrecorded(() => eq(sub(x, x), 0));
}

// Operations: arithmetic; methods too.

/** Returns -1, 0 or 1, in x's dtype; 0 for NaN. Its gradient is 0. */
export function sign(x: Tensor): Tensor {
  requireTensor('sign', x);
  const out = computeUnrecorded(() => {
    const side = (op: CompareOp): Tensor => cast(compare(op, x, 0), x.dtype);
    return x.dtype === 'bool' ? compare('ne', x, 0) : sub(side('gt'), side('lt'));
  });
  recordConstant('sign', x, out);
  return out;
}

// Operations: choice; methods too.

/**
 * Returns `value` where the bool `mask` is true, else x; broadcast. Differentiable, also in `value`
 * if it is a tensor.
 */
export function maskedFill(x: Tensor, mask: Tensor, value: Operand): Tensor {
  requireTensor('maskedFill', x);
  requireTensor('maskedFill', mask);
  if (mask.dtype === 'bool') return where(mask, value, x);
  throw new DsError({
    code: 'DS_DTYPE',
    op: 'maskedFill',
    expected: 'a mask of dtype bool',
    got: describe(mask),
    hint: 'Compare it, for example by .ne(0), or cast it: .to("bool").',
  });
}

/** The limits of clamp(); either may be omitted. */
export interface ClampOptions {
  /** Lower limit. Default: no lower limit. */
  min?: Operand | null;
  /** Upper limit. Default: no upper limit. */
  max?: Operand | null;
}

// Operations: arithmetic; methods too.

/**
 * Limits x to [min, max], as clamp(x, min, max) or clamp(x, { max }). Limits are numbers or tensors
 * that broadcast. `max` wins if min is larger. The gradient is that of x inside and at the limits,
 * as in PyTorch. Throws DS_ARGUMENT without a limit, or for limits given twice.
 */
export function clamp(
  x: Tensor,
  min: Operand | null | ClampOptions = null,
  max: Operand | null = null,
): Tensor {
  requireTensor('clamp', x);
  const isOptions = typeof min === 'object' && min !== null && !(min instanceof Tensor);
  const limits = isOptions
    ? readOptions<ClampOptions>('clamp', min, namesOf.ClampOptions)
    : { min, max };
  if (isOptions && max !== null) throw twoLimitsError(max);
  const [low, high] = [limits.min ?? null, limits.max ?? null] as [Operand | null, Operand | null];
  if (low === null && high === null) throw twoLimitsError(null);
  const clampedBelow = low === null ? x : limitBy('maximum', x, low);
  return high === null ? clampedBelow : limitBy('minimum', clampedBelow, high);
}

function twoLimitsError(got: unknown): DsError {
  return argumentError(
    'clamp',
    'limits: clamp(x, min, max), or clamp(x, { min, max }) with one or both',
    got === null ? 'none' : `options and ${formatValue(got)}`,
  );
}

// Operations: choice; methods too.

/**
 * Returns elements on and below the diagonal that lies `diagonal` places to the right; 0 elsewhere.
 * x [.., R, C]. Throws DS_SHAPE if the sizes do not fit.
 */
export const tril = (x: Tensor, diagonal = 0): Tensor => triangle('tril', x, diagonal);
/**
 * Returns elements on and above the diagonal that lies `diagonal` places to the right; 0 elsewhere.
 * x [.., R, C]. Throws DS_SHAPE if the sizes do not fit.
 */
export const triu = (x: Tensor, diagonal = 0): Tensor => triangle('triu', x, diagonal);

function triangle(op: 'tril' | 'triu', x: Tensor, diagonal: number): Tensor {
  requireTensor(op, x);
  if (x.ndim < 2) throw shapeError(op, 'a matrix, or several: [.., R, C]', describe(x));
  if (!Number.isSafeInteger(diagonal))
    throw shapeError(op, 'an integer diagonal', formatValue(diagonal));
  const [rows, columns] = leading(x.shape.slice(-2), 2);
  const { device } = x;
  const mask = computeUnrecorded(() => {
    const row = unsqueeze(arange(rows, { dtype: 'i64', device }), 1);
    const column = arange(columns, { dtype: 'i64', device, start: -diagonal });
    return compare(op === 'tril' ? 'ge' : 'le', row, column);
  });
  const out = where(mask, x, 0);
  mask.dispose();
  return out;
}

// Operations: choice.

/**
 * Returns 1 at the index along the new last dim, else 0: [.., classes] in i64. Throws DS_DTYPE for
 * other dtypes; does not check the index.
 */
export function oneHot(index: Tensor, classes: number): Tensor {
  requireTensor('oneHot', index);
  if (isFloating(index.dtype)) {
    const expected = 'an index of integers';
    throw new DsError({ code: 'DS_DTYPE', op: 'oneHot', expected, got: describe(index) });
  }
  return computeUnrecorded(() => {
    const every = arange(classes, { dtype: 'i64', device: index.device });
    return to(eq(unsqueeze(cast(index, 'i64'), -1), every), 'i64');
  });
}

// Operations: reduction; methods too.

/** Returns the number of elements over `dims` that are not 0, i64. */
export function countNonzero(x: Tensor, options: Reduction = {}): Tensor {
  requireTensor('countNonzero', x);
  const { kept, shape } = reductionOf('countNonzero', x, options);
  return computeUnrecorded(() => {
    const out = Tensor.empty(shape, 'i64', x.device);
    const whole = cast(cast(x, 'bool'), 'i64');
    if (numel(kept) > 0) {
      kernels.reduce({ in: whole, out: viewOf(out, kept), op: 'sum', accumulate: false });
    }
    return out;
  });
}
