// Element-wise arithmetic, comparison and selection with NumPy broadcasting.

import { DsError } from '../../errors.js';
import { isFloating } from '../../runtime/dtype.js';
import type { BinaryOp, CompareOp } from '../../runtime/kernels.generated.js';
import * as kernels from '../../runtime/kernels.generated.js';
import { requireNumber } from '../../runtime/require-number.js';
import { required } from '../../runtime/required.js';
import { describe, type View } from '../../runtime/view.js';
import { scope } from '../scope.js';
import { type GradSink, record } from '../tape.js';
import { Tensor } from '../tensor.js';
import { cast, full } from './creation.js';
import { type Operand, toIntegerComparison, withOperands } from './operands.js';
import {
  addBroadcastGrad,
  broadcastShape,
  constant,
  expandView,
  requireSameDevice,
  requireTensor,
  sameShape,
  writeBroadcast,
} from './shapes.js';

/** Saved operands of a sum: its backward reads none. */
const NO_OPERANDS: readonly Tensor[] = [];

/** Returns a op b over the broadcast shape. Not recorded. */
function combine(op: BinaryOp, a: Tensor, b: Tensor): Tensor {
  if (sameShape(a.shape, b.shape)) {
    const out = Tensor.emptyLike(a);
    kernels.binary({ a, b, out, op, accumulate: false });
    return out;
  }
  const shape = broadcastShape(op, a.shape, b.shape);
  const out = Tensor.empty(shape, a.dtype, a.device);
  kernels.binary({ a: expandView(a, shape), b: expandView(b, shape), out, op, accumulate: false });
  return out;
}

/** Returns the operands that a product's backward reads: each for the gradient of the other. */
function operandsFor(a: Tensor, b: Tensor): Tensor[] {
  if (a.requiresGrad && b.requiresGrad) return [a, b];
  return a.requiresGrad ? [b] : b.requiresGrad ? [a] : [];
}

/** Returns whether `x` is a tensor that can be added to or multiplied with a number in one pass. */
const isFloat = (x: Operand): x is Tensor => x instanceof Tensor && isFloating(x.dtype);

// Operations: arithmetic.

/** Returns x * factor + shift; floating dtypes. */
export function scale(x: Tensor, factor: number, shift = 0): Tensor {
  requireTensor('scale', x);
  requireNumber('scale factor', factor);
  requireNumber('scale shift', shift);
  const out = Tensor.emptyLike(x);
  kernels.scale({ in: x, out, scale: factor, shift, accumulate: false });
  record('scale', [x], [out], [], ([grad], sink) => {
    sink.write(0, (dx, accumulate) =>
      kernels.scale({ in: grad, out: dx, scale: factor, shift: 0, accumulate }),
    );
  });
  return out;
}

// Operations: arithmetic; methods too.

/**
 * Returns a + b, broadcast; either may be a number. Integers convert to the floating dtype of the
 * other operand. An integer tensor and a fraction give f32; two integer dtypes give the wider one.
 * Two floating dtypes do not mix. Throws DS_SHAPE, DS_DTYPE or DS_DEVICE if the tensors do not fit
 * together, DS_ARGUMENT for invalid options.
 */
export function add(a: Operand, b: Operand): Tensor {
  if (typeof b === 'number' && isFloat(a)) return scale(a, 1, b);
  if (typeof a === 'number' && isFloat(b)) return scale(b, 1, a);
  return withOperands('add', a, b, addTensors);
}

function addTensors(a: Tensor, b: Tensor): Tensor {
  const out = combine('add', a, b);
  record('add', [a, b], [out], NO_OPERANDS, addBackward);
  return out;
}

function addBackward([grad]: readonly (Tensor | null)[], sink: GradSink): void {
  addBroadcastGrad(sink, 0, required(grad));
  addBroadcastGrad(sink, 1, required(grad));
}

/** Returns a - b, broadcast; see add. */
export function sub(a: Operand, b: Operand): Tensor {
  if (typeof b === 'number' && isFloat(a)) return scale(a, 1, -b);
  if (typeof a === 'number' && isFloat(b)) return scale(b, -1, a);
  return withOperands('sub', a, b, subtractTensors);
}

function subtractTensors(a: Tensor, b: Tensor): Tensor {
  const out = combine('sub', a, b);
  record('sub', [a, b], [out], NO_OPERANDS, subtractBackward);
  return out;
}

function subtractBackward([grad]: readonly (Tensor | null)[], sink: GradSink): void {
  const g = required(grad);
  addBroadcastGrad(sink, 0, g);
  writeBroadcast(sink, 1, g, (db, accumulate) =>
    kernels.scale({ in: g, out: db, scale: -1, shift: 0, accumulate }),
  );
}

/** Writes grad * other into the gradient of input `i`. */
function addProductGrad(sink: GradSink, i: number, grad: Tensor, other: View): void {
  writeBroadcast(sink, i, grad, (out, accumulate) =>
    kernels.binary({ a: grad, b: expandView(other, grad.shape), out, op: 'mul', accumulate }),
  );
}

/** Returns a * b, broadcast; see add. */
export function mul(a: Operand, b: Operand): Tensor {
  if (typeof b === 'number' && isFloat(a)) return scale(a, b);
  if (typeof a === 'number' && isFloat(b)) return scale(b, a);
  return withOperands('mul', a, b, (left, right) => {
    const out = combine('mul', left, right);
    record('mul', [left, right], [out], operandsFor(left, right), ([grad], sink) => {
      addProductGrad(sink, 0, grad, right);
      addProductGrad(sink, 1, grad, left);
    });
    return out;
  });
}

/** Returns a / b, broadcast; see add. The quotient of integers is f32, as in PyTorch. */
export function div(a: Operand, b: Operand): Tensor {
  if (typeof b === 'number' && isFloat(a)) return scale(a, 1 / b);
  return withOperands('div', a, b, (left, right) => {
    if (isFloating(left.dtype)) return divideTensors(left, right);
    const [x, y] = [cast(left, 'f32'), cast(right, 'f32')];
    const out = divideTensors(x, y);
    x.dispose();
    y.dispose();
    return out;
  });
}

function divideTensors(a: Tensor, b: Tensor): Tensor {
  const out = combine('div', a, b);
  const saved = b.requiresGrad ? [b, out] : [b];
  record('div', [a, b], [out], saved, ([grad], sink) => {
    const g = grad;
    const divisor = expandView(b, g.shape);
    writeBroadcast(sink, 0, g, (da, accumulate) =>
      kernels.binary({ a: g, b: divisor, out: da, op: 'div', accumulate }),
    );
    if (!sink.needs(1)) return;
    const slope = Tensor.emptyLike(g);
    kernels.binary({ a: out, b: divisor, out: slope, op: 'div', accumulate: false });
    kernels.scale({ in: slope, out: slope, scale: -1, shift: 0, accumulate: false });
    addProductGrad(sink, 1, g, slope);
  });
  return out;
}

/** Returns grad where `left op right` is true, 0 elsewhere. */
function maskGrad(grad: Tensor, left: View, right: View, op: CompareOp): Tensor {
  const mask = Tensor.empty(grad.shape, 'bool', grad.device);
  kernels.compare({
    a: expandView(left, grad.shape),
    b: expandView(right, grad.shape),
    out: mask,
    op,
  });
  const out = Tensor.emptyLike(grad);
  const nothing = expandView(constant(0, grad.dtype, grad.device), grad.shape);
  kernels.where({ condition: mask, a: grad, b: nothing, out });
  return out;
}

type Extremum = 'maximum' | 'minimum';

/** The comparison that is true if the other operand is the result. */
const LOSES: Record<Extremum, CompareOp> = { maximum: 'lt', minimum: 'gt' };

function extremum(op: Extremum, a: Operand, b: Operand): Tensor {
  return withOperands(op, a, b, (left, right) => {
    const out = combine(op, left, right);
    record(op, [left, right], [out], [left, right], ([grad], sink) => {
      const g = grad;
      const [x, y] = [expandView(left, g.shape), expandView(right, g.shape)];
      if (sink.needs(0)) addBroadcastGrad(sink, 0, extremumGrad(g, x, y, LOSES[op]));
      if (sink.needs(1)) addBroadcastGrad(sink, 1, extremumGrad(g, y, x, LOSES[op]));
    });
    return out;
  });
}

/**
 * Returns 0 where the comparison `loses` of both views is true, half of grad at equal elements,
 * else grad.
 */
function extremumGrad(grad: Tensor, ownView: View, other: View, loses: CompareOp): Tensor {
  const { shape, dtype, device } = grad;
  const [mask, out] = [Tensor.empty(shape, 'bool', device), Tensor.emptyLike(grad)];
  kernels.scale({ in: grad, out, scale: 0.5, shift: 0, accumulate: false });
  kernels.compare({ a: ownView, b: other, out: mask, op: 'eq' });
  kernels.where({ condition: mask, a: out, b: grad, out });
  kernels.compare({ a: ownView, b: other, out: mask, op: loses });
  kernels.where({ condition: mask, a: expandView(constant(0, dtype, device), shape), b: out, out });
  return out;
}

/** Returns the larger of a and b, broadcast. Equal elements get half of the gradient each. */
export function maximum(a: Operand, b: Operand): Tensor {
  return extremum('maximum', a, b);
}

/** Returns the smaller of a and b, broadcast. Equal elements get half of the gradient each. */
export function minimum(a: Operand, b: Operand): Tensor {
  return extremum('minimum', a, b);
}

/** Returns `values` where `left op 0` is true, 0 elsewhere. */
function whereSign(values: Tensor, left: View, op: CompareOp): Tensor {
  return maskGrad(values, left, constant(0, left.dtype, values.device), op);
}

/** Returns b a^(b - 1), the slope of a^b in a; 0 if b is 0. */
function slopeOfBase(base: View, exponent: View, out: Tensor): Tensor {
  kernels.scale({ in: exponent, out, scale: 1, shift: -1, accumulate: false });
  kernels.binary({ a: base, b: out, out, op: 'pow', accumulate: false });
  kernels.binary({ a: out, b: exponent, out, op: 'mul', accumulate: false });
  return whereSign(out, exponent, 'ne');
}

/** Returns a^b log a, the slope of a^b in b; 0 if a is 0 and b is not negative. */
function slopeOfExponent(base: View, exponent: View, power: Tensor): Tensor {
  const log = Tensor.emptyLike(power);
  kernels.unary({ in: base, out: log, op: 'log' });
  const atZero = whereSign(log, exponent, 'lt');
  const isZero = Tensor.empty(power.shape, 'bool', power.device);
  const zero = expandView(constant(0, power.dtype, power.device), power.shape);
  kernels.compare({ a: base, b: zero, out: isZero, op: 'eq' });
  kernels.where({ condition: isZero, a: atZero, b: log, out: log });
  kernels.binary({ a: log, b: power, out: log, op: 'mul', accumulate: false });
  return log;
}

/**
 * Returns a to the power b, broadcast; floating dtypes. Gradients as in PyTorch: the gradient of a
 * is 0 if b is 0. The gradient of b is 0 if a is 0 and b is not negative, and NaN if a is negative.
 */
export function pow(a: Operand, b: Operand): Tensor {
  return withOperands('pow', a, b, (left, right) => {
    const out = combine('pow', left, right);
    record('pow', [left, right], [out], [left, right, out], ([grad], sink) => {
      const g = grad;
      const [base, exponent] = [expandView(left, g.shape), expandView(right, g.shape)];
      if (sink.needs(0)) {
        addProductGrad(sink, 0, g, slopeOfBase(base, exponent, Tensor.emptyLike(g)));
      }
      if (sink.needs(1)) {
        addProductGrad(sink, 1, g, slopeOfExponent(base, exponent, out));
      }
    });
    return out;
  });
}

/**
 * Returns left / (left left + right right), optionally negated, in g's dtype; 0 if both are 0. f32
 * inside, because squares overflow f16.
 */
function slopeOfAngle(left: View, right: View, sign: 1 | -1, g: Tensor): Tensor {
  const dtype = g.dtype === 'f64' ? 'f64' : 'f32';
  const allocateWide = (): Tensor => Tensor.empty(g.shape, dtype, g.device);
  const [a, b, squares] = [allocateWide(), allocateWide(), allocateWide()];
  kernels.copy({ in: left, out: a });
  kernels.copy({ in: right, out: b });
  kernels.binary({ a, b: a, out: squares, op: 'mul', accumulate: false });
  kernels.binary({ a: b, b, out: squares, op: 'mul', accumulate: true });
  const slope = Tensor.emptyLike(g);
  const isZero = Tensor.empty(g.shape, 'bool', g.device);
  const zero = expandView(constant(0, dtype, g.device), g.shape);
  kernels.compare({ a: squares, b: zero, out: isZero, op: 'eq' });
  kernels.binary({ a, b: squares, out: a, op: 'div', accumulate: false });
  kernels.where({ condition: isZero, a: zero, b: a, out: a });
  kernels.scale({ in: a, out: a, scale: sign, shift: 0, accumulate: false });
  kernels.copy({ in: a, out: slope });
  for (const each of [a, b, squares, isZero]) each.dispose();
  return slope;
}

// Operations: functions; methods too.

/**
 * Returns the angle of the point (x, y) in radians, in [-pi, pi], broadcast; integers become f32.
 * The gradient at the origin is 0, as in PyTorch. See add.
 */
export function atan2(y: Operand, x: Operand): Tensor {
  return withOperands('atan2', y, x, (up, right) => {
    if (!isFloating(up.dtype)) return scope(() => atan2(cast(up, 'f32'), cast(right, 'f32')));
    const out = combine('atan2', up, right);
    record('atan2', [up, right], [out], [up, right], ([grad], sink) => {
      const g = grad;
      const [a, b] = [expandView(up, g.shape), expandView(right, g.shape)];
      if (sink.needs(0)) addProductGrad(sink, 0, g, slopeOfAngle(b, a, 1, g));
      if (sink.needs(1)) addProductGrad(sink, 1, g, slopeOfAngle(a, b, -1, g));
    });
    return out;
  });
}

/** The comparisons with exchanged operands: a < b is b > a. */
const mirrored = { eq: 'eq', ne: 'ne', lt: 'gt', le: 'ge', gt: 'lt', ge: 'le' } as const;

// Operations: none.

/** Returns maximum() or minimum() of x and `limit`. At equal elements only x has a gradient. */
export function limitBy(op: Extremum, x: Operand, limit: Operand): Tensor {
  return withOperands(op, x, limit, (left, right) => {
    const out = combine(op, left, right);
    record(op, [left, right], [out], [left, right], ([grad], sink) => {
      const g = grad;
      const inside = op === 'maximum' ? 'ge' : 'le';
      if (sink.needs(0)) addBroadcastGrad(sink, 0, maskGrad(g, left, right, inside));
      if (sink.needs(1)) addBroadcastGrad(sink, 1, maskGrad(g, left, right, LOSES[op]));
    });
    return out;
  });
}

/**
 * Returns a op b as bool, broadcast. Integers compare with the exact value of a number, and in the
 * dtype of a floating tensor. Not differentiable. See add.
 */
export function compare(op: CompareOp, a: Operand, b: Operand): Tensor {
  if (typeof a === 'number' && b instanceof Tensor) return compare(mirrored[op], b, a);
  if (a instanceof Tensor && typeof b === 'number' && !isFloating(a.dtype)) {
    const onIntegers = toIntegerComparison(op, a.dtype, b);
    if (typeof onIntegers === 'boolean')
      return full(a.shape, Number(onIntegers), { dtype: 'bool', device: a.device });
    if (onIntegers) return compare(onIntegers.op, a, onIntegers.number);
  }
  return withOperands(op, a, b, (left, right) => {
    const shape = broadcastShape(op, left.shape, right.shape);
    const out = Tensor.empty(shape, 'bool', left.device);
    kernels.compare({ a: expandView(left, shape), b: expandView(right, shape), out, op });
    return out;
  });
}

// Operations: comparison; methods too.

/** Returns a = b as bool, broadcast; see compare. */
export const eq = (a: Operand, b: Operand): Tensor => compare('eq', a, b);
/** Returns a != b as bool, broadcast; see compare. */
export const ne = (a: Operand, b: Operand): Tensor => compare('ne', a, b);
/** Returns a < b as bool, broadcast; see compare. */
export const lt = (a: Operand, b: Operand): Tensor => compare('lt', a, b);
/** Returns a <= b as bool, broadcast; see compare. */
export const le = (a: Operand, b: Operand): Tensor => compare('le', a, b);
/** Returns a > b as bool, broadcast; see compare. */
export const gt = (a: Operand, b: Operand): Tensor => compare('gt', a, b);
/** Returns a >= b as bool, broadcast; see compare. */
export const ge = (a: Operand, b: Operand): Tensor => compare('ge', a, b);

// Operations: choice.

/**
 * Returns condition ? a : b, broadcast; `condition` is bool. Two numbers give f32; otherwise dtypes
 * as in add. Throws as add does.
 */
export function where(condition: Tensor, a: Operand, b: Operand): Tensor {
  requireCondition(condition);
  if (typeof a === 'number' && typeof b === 'number') {
    const left = constant(a, 'f32', condition.device);
    const out = where(condition, left, b);
    left.dispose();
    return out;
  }
  return withOperands('where', a, b, (left, right) => selectTensors(condition, left, right));
}

function requireCondition(condition: unknown): asserts condition is Tensor {
  requireTensor('where', condition);
  if (condition.dtype === 'bool') return;
  throw new DsError({
    code: 'DS_DTYPE',
    op: 'where',
    expected: 'a condition of dtype bool',
    got: describe(condition),
    hint: 'Compare it, for example by .ne(0), or cast it: .to("bool").',
  });
}

function selectTensors(condition: Tensor, a: Tensor, b: Tensor): Tensor {
  requireSameDevice('where', a, condition);
  const values = broadcastShape('where', a.shape, b.shape);
  const shape = broadcastShape('where', condition.shape, values);
  const out = Tensor.empty(shape, a.dtype, a.device);
  const [x, y] = [expandView(a, shape), expandView(b, shape)];
  kernels.where({ condition: expandView(condition, shape), a: x, b: y, out });
  record('where', [a, b], [out], [condition], ([grad], sink) => {
    const g = grad;
    const mask = expandView(condition, g.shape);
    const nothing = expandView(constant(0, g.dtype, g.device), g.shape);
    const maskedGrad = (first: View, second: View): Tensor => {
      const d = Tensor.emptyLike(g);
      kernels.where({ condition: mask, a: first, b: second, out: d });
      return d;
    };
    if (sink.needs(0)) addBroadcastGrad(sink, 0, maskedGrad(g, nothing));
    if (sink.needs(1)) addBroadcastGrad(sink, 1, maskedGrad(nothing, g));
  });
  return out;
}
