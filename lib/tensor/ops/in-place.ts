// In-place ops: add_, mul_, fill_ and so on, outside the graph.

import { DsError } from '../../errors.js';
import type { BinaryOp, UnaryOp } from '../../runtime/kernels.generated.js';
import * as kernels from '../../runtime/kernels.generated.js';
import { requireFinite, requireNumber } from '../../runtime/require-number.js';
import { required } from '../../runtime/required.js';
import { describe, type View } from '../../runtime/view.js';
import { requireRepresentable } from '../host-values.js';
import { inOrder, nextRandom } from '../random.js';
import { scope } from '../scope.js';
import { isGradEnabled, markChanged } from '../tape.js';
import { Tensor } from '../tensor.js';
import { cast } from './creation.js';
import { type ClampOptions, clamp } from './logic.js';
import { type Operand, withOperands } from './operands.js';
import {
  copyRowMajor,
  expandView,
  requireSameDevice,
  requireTensor,
  sameShape,
  shapeError,
  toRowMajor,
} from './shapes.js';

/**
 * Runs `write`, which overwrites x. Throws DS_AUTOGRAD while operations on x or an operand are
 * recorded, DS_SHAPE if elements of x share memory, DS_ARGUMENT for parameters of an engine. A
 * backward that has saved x's memory throws when it runs.
 */
function overwriteChecked(
  op: string,
  x: Tensor,
  others: readonly unknown[],
  write: () => void,
): Tensor {
  requireTensor(op, x);
  const inGraph = [x, ...others].some((each) => each instanceof Tensor && each.requiresGrad);
  if (inGraph && isGradEnabled()) {
    throw new DsError({
      code: 'DS_AUTOGRAD',
      op,
      expected: 'tensors outside the graph, or noGrad()',
      got: `${describe(x)}${x.requiresGrad ? ', which requires a gradient' : ' and an operand that requires a gradient'}`,
      hint: `Use ${op.slice(0, -1)}(), which returns a new tensor, or noGrad(() => x.${op}(...)).`,
    });
  }
  if (x.shape.some((size, d) => size > 1 && x.strides[d] === 0)) {
    const hint = 'The tensor is expanded: call clone() first.';
    throw shapeError(op, 'a tensor without overlapping elements', describe(x), hint);
  }
  x.requireWritable(op);
  write();
  markChanged(x);
  return x;
}

/**
 * Returns `other` as an operand of an op that overwrites x: expanded to x's shape, and copied if it
 * partially overlaps x.
 */
function operandFor(op: string, x: Tensor, other: Tensor): View {
  const fits = other.ndim <= x.ndim && sameShape(expandedShape(x, other), x.shape);
  if (!fits) throw shapeError(op, `an operand that broadcasts to ${describe(x)}`, describe(other));
  const isSame = sameShape(other.shape, x.shape) && sameShape(other.strides, x.strides);
  const overlaps = other.buffer === x.buffer && !(isSame && other.offset === x.offset);
  return expandView(overlaps ? copyRowMajor(other) : other, x.shape);
}

/** Returns x's shape with the sizes of `other` that are not 1. */
function expandedShape(x: Tensor, other: Tensor): number[] {
  const lead = x.ndim - other.ndim;
  return x.shape.map((size, d) => {
    const given = d < lead ? 1 : required(other.shape[d - lead]);
    return given === 1 ? size : given;
  });
}

function combine(name: BinaryOp, x: Tensor, other: Operand): Tensor {
  const op = `${name}_`;
  return overwriteChecked(op, x, [other], () =>
    scope(() =>
      withOperands(op, x, other, (left, right) => {
        requireDType(op, x, left);
        const b = operandFor(op, x, right);
        kernels.binary({ a: x, b, out: x, op: name, accumulate: false });
      }),
    ),
  );
}

function requireDType(op: string, x: Tensor, result: Tensor): void {
  if (result.dtype === x.dtype && x.dtype !== 'bool') return;
  throw new DsError({
    code: 'DS_DTYPE',
    op,
    expected: `a result that ${describe(x)} can hold`,
    got: result.dtype === 'bool' ? 'bool' : `a result of ${result.dtype}`,
    hint: 'Cast one of them first.',
  });
}

// Operations: in place; methods too.

/**
 * Computes x += other, broadcast to x; a number or a tensor. Throws as overwriteChecked() does, and
 * DS_DTYPE if the sum does not have x's dtype.
 */
export const add_ = (x: Tensor, other: Operand): Tensor => combine('add', x, other);
/** Computes x -= other. */
export const sub_ = (x: Tensor, other: Operand): Tensor => combine('sub', x, other);
/** Computes x *= other. */
export const mul_ = (x: Tensor, other: Operand): Tensor => combine('mul', x, other);
/** Divides x by other in place. Rejects integers, because their quotient is f32. */
export function div_(x: Tensor, other: Operand): Tensor {
  requireTensor('div_', x);
  if (['u8', 'i32', 'i64', 'bool'].includes(x.dtype)) {
    const expected = 'a floating dtype: a quotient of integers is f32';
    throw new DsError({ code: 'DS_DTYPE', op: 'div_', expected, got: describe(x) });
  }
  return combine('div', x, other);
}

const overwrite = (op: UnaryOp, x: Tensor): Tensor =>
  overwriteChecked(`${op}_`, x, [], () => kernels.unary({ in: x, out: x, op }));

/** Computes x = -x; floating dtypes. */
export const neg_ = (x: Tensor): Tensor => overwrite('neg', x);
/** Computes x = e^x; floating dtypes. */
export const exp_ = (x: Tensor): Tensor => overwrite('exp', x);
/** Computes x = the square root of x; floating dtypes. */
export const sqrt_ = (x: Tensor): Tensor => overwrite('sqrt', x);
/** Computes x = max(x, 0); floating dtypes. */
export const relu_ = (x: Tensor): Tensor => overwrite('relu', x);

function fillTensor(op: string, x: Tensor, value: number): Tensor {
  requireNumber(`${op} value`, value);
  return overwriteChecked(op, x, [], () => {
    requireRepresentable(op, value, x.dtype);
    kernels.fill({ out: x, value });
  });
}

/** Sets every element to `value`. Throws DS_ARGUMENT if an integer dtype cannot hold it. */
export const fill_ = (x: Tensor, value: number): Tensor => fillTensor('fill_', x, value);
/** Sets every element to 0. */
export const zero_ = (x: Tensor): Tensor => fillTensor('zero_', x, 0);

/**
 * Copies the values of `source`, broadcast to x and cast to its dtype, from any device. Throws
 * DS_SHAPE if the sizes do not fit.
 */
export function copy_(x: Tensor, source: Tensor): Tensor {
  requireTensor('copy_', source);
  return overwriteChecked('copy_', x, [source], () =>
    scope(() => {
      const onDevice = source.to(x.device);
      kernels.copy({ in: operandFor('copy_', x, onDevice), out: x });
    }),
  );
}

/** Clamps x to limits, as clamp(); limits in x's dtype. */
export function clamp_(
  x: Tensor,
  min: Operand | null | ClampOptions = null,
  max: Operand | null = null,
): Tensor {
  return overwriteChecked('clamp_', x, [min, max], () =>
    scope(() => {
      const result = clamp(x.detach(), min, max);
      requireDType('clamp_', x, result);
      kernels.copy({ in: operandFor('clamp_', x, result), out: x });
    }),
  );
}

/**
 * Sets elements to `value` where the bool `mask`, broadcast to x, is true. Throws DS_DTYPE,
 * DS_SHAPE.
 */
export function maskedFill_(x: Tensor, mask: Tensor, value: number): Tensor {
  requireTensor('maskedFill_', mask);
  requireNumber('maskedFill_ value', value);
  return overwriteChecked('maskedFill_', x, [], () =>
    scope(() => {
      requireSameDevice('maskedFill_', x, mask);
      const fixed = Tensor.empty([], x.dtype, x.device);
      requireRepresentable('maskedFill_', value, x.dtype);
      kernels.fill({ out: fixed, value });
      const condition = operandFor('maskedFill_', x, cast(mask, 'bool'));
      kernels.where({ condition, a: expandView(fixed, x.shape), b: x, out: x });
    }),
  );
}

/** Fills x by `fill`, which writes contiguous memory; x may have any strides. */
function drawInto(x: Tensor, fill: (out: Tensor) => void): void {
  scope(() => {
    if (x.isContiguous) return fill(x);
    const out = Tensor.emptyLike(x);
    fill(out);
    kernels.copy({ in: toRowMajor(out), out: x });
  });
}

/**
 * Fills x with normal numbers from the library's generator, the same on every device. Throws
 * DS_ARGUMENT unless `mean` is finite and `stddev` is at least 0.
 */
export function normal_(x: Tensor, mean = 0, stddev = 1): Tensor {
  requireFinite('normal_ mean', mean);
  requireFinite('normal_ stddev', stddev, 0);
  return overwriteChecked('normal_', x, [], () =>
    drawInto(x, (out) => kernels.randomNormal({ out, mean, stddev, ...nextRandom(), ...inOrder })),
  );
}

/**
 * Fills x with uniform numbers in [low, high) from the library's generator, the same on every
 * device. Throws DS_ARGUMENT unless the bounds are finite and rising.
 */
export function uniform_(x: Tensor, low = 0, high = 1): Tensor {
  requireFinite('uniform_ low', low);
  requireFinite('uniform_ high', high, low);
  return overwriteChecked('uniform_', x, [], () =>
    drawInto(x, (out) => kernels.randomUniform({ out, low, high, ...nextRandom(), ...inOrder })),
  );
}
