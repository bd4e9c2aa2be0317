// Element-wise arithmetic, comparison and selection with NumPy broadcasting.
import { isFloating } from '../../runtime/dtype.js';
import type { BinaryOp, CompareOp } from '../../runtime/kernels.generated.js';
import * as kernels from '../../runtime/kernels.generated.js';
import type { View } from '../../runtime/view.js';
import { type GradSink, record } from '../autograd.js';
import { Tensor } from '../tensor.js';
import {
  broadcastShape,
  constant,
  expanded,
  giveBroadcast,
  requireAlike,
  requireSameDevice,
  sameShape,
  writeBroadcast,
} from './shapes.js';

/** out = a op b over the broadcast shape, unrecorded. */
function combine(op: BinaryOp, a: Tensor, b: Tensor): Tensor {
  requireAlike(op, a, b);
  if (sameShape(a.shape, b.shape)) {
    const out = Tensor.emptyLike(a);
    kernels.binary({ a, b, out, op, accumulate: false });
    return out;
  }
  const shape = broadcastShape(op, a.shape, b.shape);
  const out = Tensor.empty(shape, a.dtype, a.device);
  kernels.binary({ a: expanded(a, shape), b: expanded(b, shape), out, op, accumulate: false });
  return out;
}

/**
 * What an op's backward reads: an operand is kept only for the sake of the other one's gradient.
 */
function operandsFor(a: Tensor, b: Tensor): Tensor[] {
  if (a.requiresGrad && b.requiresGrad) return [a, b];
  return a.requiresGrad ? [b] : b.requiresGrad ? [a] : [];
}

/** `value` as an operand beside `like`. */
function operand(value: Tensor | number, like: Tensor): Tensor {
  return typeof value === 'number' ? constant(value, like.dtype, like.device) : value;
}

/** x * factor + shift; floating dtypes. */
export function scale(x: Tensor, factor: number, shift = 0): Tensor {
  const out = Tensor.emptyLike(x);
  kernels.scale({ in: x, out, scale: factor, shift, accumulate: false });
  record('scale', [x], [out], [], ([grad], sink) => {
    sink.write(0, (dx, accumulate) =>
      kernels.scale({ in: grad as Tensor, out: dx, scale: factor, shift: 0, accumulate }),
    );
  });
  return out;
}

/**
 * a + b, broadcast. Both of one dtype and device; a number takes a's. Throws DS_SHAPE, DS_DTYPE.
 */
export function add(a: Tensor, b: Tensor | number): Tensor {
  if (typeof b === 'number' && isFloating(a.dtype)) return scale(a, 1, b);
  const right = operand(b, a);
  const out = combine('add', a, right);
  const [aShape, bShape] = [a.shape, right.shape];
  record('add', [a, right], [out], [], ([grad], sink) => {
    giveBroadcast(sink, 0, aShape, grad as Tensor);
    giveBroadcast(sink, 1, bShape, grad as Tensor);
  });
  return out;
}

/** a - b, broadcast; see add. */
export function sub(a: Tensor, b: Tensor | number): Tensor {
  if (typeof b === 'number' && isFloating(a.dtype)) return scale(a, 1, -b);
  const right = operand(b, a);
  const out = combine('sub', a, right);
  const [aShape, bShape] = [a.shape, right.shape];
  record('sub', [a, right], [out], [], ([grad], sink) => {
    const g = grad as Tensor;
    giveBroadcast(sink, 0, aShape, g);
    writeBroadcast(sink, 1, bShape, g, (db, accumulate) =>
      kernels.scale({ in: g, out: db, scale: -1, shift: 0, accumulate }),
    );
  });
  return out;
}

/** Writes grad * other into the gradient of input `i`. */
function giveProduct(
  sink: GradSink,
  i: number,
  shape: readonly number[],
  grad: Tensor,
  other: View,
) {
  writeBroadcast(sink, i, shape, grad, (out, accumulate) =>
    kernels.binary({ a: grad, b: expanded(other, grad.shape), out, op: 'mul', accumulate }),
  );
}

/** a * b, broadcast; see add. */
export function mul(a: Tensor, b: Tensor | number): Tensor {
  if (typeof b === 'number' && isFloating(a.dtype)) return scale(a, b);
  const right = operand(b, a);
  const out = combine('mul', a, right);
  record('mul', [a, right], [out], operandsFor(a, right), ([grad], sink) => {
    giveProduct(sink, 0, a.shape, grad as Tensor, right);
    giveProduct(sink, 1, right.shape, grad as Tensor, a);
  });
  return out;
}

/** a / b, broadcast; see add. Integers truncate. */
export function div(a: Tensor, b: Tensor | number): Tensor {
  if (typeof b === 'number' && isFloating(a.dtype)) return scale(a, 1 / b);
  const right = operand(b, a);
  const out = combine('div', a, right);
  const saved = right.requiresGrad ? [right, out] : [right];
  record('div', [a, right], [out], saved, ([grad], sink) => {
    const g = grad as Tensor;
    const divisor = expanded(right, g.shape);
    writeBroadcast(sink, 0, a.shape, g, (da, accumulate) =>
      kernels.binary({ a: g, b: divisor, out: da, op: 'div', accumulate }),
    );
    if (!sink.needs(1)) return;
    const slope = Tensor.emptyLike(g);
    kernels.binary({ a: out, b: divisor, out: slope, op: 'div', accumulate: false });
    kernels.scale({ in: slope, out: slope, scale: -1, shift: 0, accumulate: false });
    giveProduct(sink, 1, right.shape, g, slope);
  });
  return out;
}

/** grad where `left op right`, 0 elsewhere. */
function masked(grad: Tensor, left: View, right: View, op: CompareOp): Tensor {
  const mask = Tensor.empty(grad.shape, 'bool', grad.device);
  kernels.compare({ a: expanded(left, grad.shape), b: expanded(right, grad.shape), out: mask, op });
  const out = Tensor.emptyLike(grad);
  const nothing = expanded(constant(0, grad.dtype, grad.device), grad.shape);
  kernels.where({ condition: mask, a: grad, b: nothing, out });
  return out;
}

function extremum(op: 'maximum' | 'minimum', a: Tensor, b: Tensor | number): Tensor {
  const right = operand(b, a);
  const out = combine(op, a, right);
  record(op, [a, right], [out], [a, right], ([grad], sink) => {
    const g = grad as Tensor;
    const [wins, loses]: CompareOp[] = op === 'maximum' ? ['ge', 'lt'] : ['le', 'gt'];
    if (sink.needs(0)) giveBroadcast(sink, 0, a.shape, masked(g, a, right, wins as CompareOp));
    if (sink.needs(1)) giveBroadcast(sink, 1, right.shape, masked(g, a, right, loses as CompareOp));
  });
  return out;
}

/** The larger of a and b, broadcast. Where they are equal, a gets the gradient. */
export function maximum(a: Tensor, b: Tensor | number): Tensor {
  return extremum('maximum', a, b);
}

/** The smaller of a and b, broadcast. Where they are equal, a gets the gradient. */
export function minimum(a: Tensor, b: Tensor | number): Tensor {
  return extremum('minimum', a, b);
}

/** `values` where `left op 0`, 0 elsewhere. */
function whereSign(values: Tensor, left: View, op: CompareOp): Tensor {
  return masked(values, left, constant(0, left.dtype, values.device), op);
}

/** b a^(b - 1), which is 0 where b is 0 whatever a is. */
function slopeOfBase(base: View, exponent: View, out: Tensor): Tensor {
  kernels.scale({ in: exponent, out, scale: 1, shift: -1, accumulate: false });
  kernels.binary({ a: base, b: out, out, op: 'pow', accumulate: false });
  kernels.binary({ a: out, b: exponent, out, op: 'mul', accumulate: false });
  return whereSign(out, exponent, 'ne');
}

/** a^b log a, which is 0 where a is 0 and b is not negative. */
function slopeOfExponent(base: View, exponent: View, power: Tensor): Tensor {
  const log = Tensor.emptyLike(power);
  kernels.unary({ in: base, out: log, op: 'log' });
  const atZero = whereSign(log, exponent, 'lt');
  const isZero = Tensor.empty(power.shape, 'bool', power.device);
  const zero = expanded(constant(0, power.dtype, power.device), power.shape);
  kernels.compare({ a: base, b: zero, out: isZero, op: 'eq' });
  kernels.where({ condition: isZero, a: atZero, b: log, out: log });
  kernels.binary({ a: log, b: power, out: log, op: 'mul', accumulate: false });
  return log;
}

/**
 * a to the power b, broadcast; floating dtypes. Gradients as PyTorch has them: that of a is 0 where b is 0, that of b is
 * 0 where a is 0 and b is not negative, and NaN where a is negative.
 */
export function pow(a: Tensor, b: Tensor | number): Tensor {
  const right = operand(b, a);
  const out = combine('pow', a, right);
  record('pow', [a, right], [out], [a, right, out], ([grad], sink) => {
    const g = grad as Tensor;
    const [base, exponent] = [expanded(a, g.shape), expanded(right, g.shape)];
    if (sink.needs(0)) {
      giveProduct(sink, 0, a.shape, g, slopeOfBase(base, exponent, Tensor.emptyLike(g)));
    }
    if (sink.needs(1)) giveProduct(sink, 1, right.shape, g, slopeOfExponent(base, exponent, out));
  });
  return out;
}

/** a op b as bool, broadcast; not differentiable. */
export function compare(op: CompareOp, a: Tensor, b: Tensor | number): Tensor {
  const right = operand(b, a);
  requireAlike(op, a, right);
  const shape = broadcastShape(op, a.shape, right.shape);
  const out = Tensor.empty(shape, 'bool', a.device);
  kernels.compare({ a: expanded(a, shape), b: expanded(right, shape), out, op });
  return out;
}

export const eq = (a: Tensor, b: Tensor | number): Tensor => compare('eq', a, b);
export const ne = (a: Tensor, b: Tensor | number): Tensor => compare('ne', a, b);
export const lt = (a: Tensor, b: Tensor | number): Tensor => compare('lt', a, b);
export const le = (a: Tensor, b: Tensor | number): Tensor => compare('le', a, b);
export const gt = (a: Tensor, b: Tensor | number): Tensor => compare('gt', a, b);
export const ge = (a: Tensor, b: Tensor | number): Tensor => compare('ge', a, b);

/** condition ? a : b, broadcast; `condition` is bool. A number takes the other's dtype. */
export function where(condition: Tensor, a: Tensor, b: Tensor | number): Tensor {
  const right = operand(b, a);
  requireAlike('where', a, right);
  requireSameDevice('where', a, condition);
  const values = broadcastShape('where', a.shape, right.shape);
  const shape = broadcastShape('where', condition.shape, values);
  const out = Tensor.empty(shape, a.dtype, a.device);
  const [x, y] = [expanded(a, shape), expanded(right, shape)];
  kernels.where({ condition: expanded(condition, shape), a: x, b: y, out });
  record('where', [a, right], [out], [condition], ([grad], sink) => {
    const g = grad as Tensor;
    const mask = expanded(condition, g.shape);
    const nothing = expanded(constant(0, g.dtype, g.device), g.shape);
    if (sink.needs(0)) {
      const da = Tensor.emptyLike(g);
      kernels.where({ condition: mask, a: g, b: nothing, out: da });
      giveBroadcast(sink, 0, a.shape, da);
    }
    if (sink.needs(1)) {
      const db = Tensor.emptyLike(g);
      kernels.where({ condition: mask, a: nothing, b: g, out: db });
      giveBroadcast(sink, 1, right.shape, db);
    }
  });
  return out;
}
