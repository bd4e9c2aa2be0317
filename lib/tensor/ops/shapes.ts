// Shape arithmetic and argument checks that the ops share: dims, broadcasting, views.

import { DsError } from '../../errors.js';
import type { Device } from '../../runtime/device.js';
import type { DType } from '../../runtime/dtype.js';
import { formatValue } from '../../runtime/format-value.js';
import { valueError } from '../../runtime/input-errors.js';
import * as kernels from '../../runtime/kernels.generated.js';
import { required } from '../../runtime/required.js';
import { contiguousStrides, describe, isContiguous, numel, type View } from '../../runtime/view.js';
import { type GradSink, record } from '../tape.js';
import { Tensor } from '../tensor.js';

/** Returns a DS_SHAPE error. */
export function shapeError(
  op: string,
  expected: string,
  got: string,
  hint = 'Compare the shapes of its operands; reshape() and transpose() change them.',
): DsError {
  return new DsError({ code: 'DS_SHAPE', op, expected, got, hint });
}

/** Throws DS_ARGUMENT unless `value` is a tensor. */
export function requireTensor(op: string, value: unknown): asserts value is Tensor {
  if (!(value instanceof Tensor)) throw notTensorError(op, 'a tensor', value);
}

/** Throws DS_ARGUMENT unless `values` is a list of tensors. */
export function requireTensors(op: string, values: unknown): asserts values is readonly Tensor[] {
  if (!Array.isArray(values)) {
    throw notTensorError(op, 'a list of tensors', values, `Pass an array: ${op}([a, b]).`);
  }
  for (const value of values) requireTensor(op, value);
}

/** Returns the DS_ARGUMENT error for a `value` that is no tensor. */
export function notTensorError(
  op: string,
  expected: string,
  value: unknown,
  hint = isTensorList(value)
    ? 'An array of numbers in a sample becomes a list of tensors: return a Float32Array or an Int32Array.'
    : 'Tensor.from() creates a tensor from numbers and arrays.',
): DsError {
  return valueError(op, expected, value, hint);
}

const isTensorList = (value: unknown): boolean =>
  Array.isArray(value) && value.length > 0 && value.every((item) => item instanceof Tensor);

/** A shape argument: one list, or sizes as separate arguments. */
export type Sizes = readonly [readonly number[]] | readonly number[];

/** Returns `sizes` as one list. */
export function listOf(sizes: Sizes): readonly number[] {
  const [first] = sizes;
  return sizes.length === 1 && Array.isArray(first) ? first : (sizes as readonly number[]);
}

/**
 * Returns `position` along a dim. Throws DS_ARGUMENT for a fraction, for example half of an odd
 * size.
 */
export function requirePosition(op: string, position: number): number {
  if (Number.isSafeInteger(position)) return position;
  throw valueError(
    op,
    'integers as positions and lengths',
    position,
    'Apply Math.floor() to the result of a division.',
  );
}

/** Returns `dim` counted from the front. Throws DS_SHAPE if the tensor has no such dim. */
export function normalizeDim(op: string, dim: number, ndim: number): number {
  const found = typeof dim === 'number' && dim < 0 ? dim + ndim : dim;
  if (Number.isInteger(found) && found >= 0 && found < ndim) return found;
  const hint =
    ndim === 0 ? 'The tensor has no dims: shape [].' : 'Negative dims count from the end.';
  throw shapeError(op, `a dim in [${-ndim}, ${ndim})`, formatValue(dim), hint);
}

/** Returns distinct dims in ascending order, counted from the front. Default: all dims. */
export function normalizeDims(
  op: string,
  dims: number | readonly number[] | undefined,
  ndim: number,
): number[] {
  if (dims === undefined) return Array.from({ length: ndim }, (_, d) => d);
  const list: readonly number[] = Array.isArray(dims) ? dims : [dims];
  return [...new Set(list.map((d) => normalizeDim(op, d, ndim)))].sort((a, b) => a - b);
}

export function sameShape(a: readonly number[], b: readonly number[]): boolean {
  if (a === b) return true;
  if (a.length !== b.length) return false;
  for (let d = 0; d < a.length; ++d) if (a[d] !== b[d]) return false;
  return true;
}

/** Throws DS_DTYPE or DS_DEVICE unless both have one dtype and one device. */
export function requireSameType(op: string, a: Tensor, b: Tensor): void {
  requireTensor(op, a);
  requireTensor(op, b);
  if (a.dtype !== b.dtype) throw dtypeMixError(op, a, b);
  if (a.device !== b.device) throw deviceMixError(op, a, b);
}

/** Throws as requireSameType() does, for the input of a layer and the layer's weight. */
export function requireInput(op: string, x: Tensor, weight: Tensor): void {
  requireTensor(op, x);
  requireTensor(op, weight);
  if (x.dtype !== weight.dtype) {
    throw new DsError({
      code: 'DS_DTYPE',
      op,
      expected: `an input of the weight's dtype, ${weight.dtype}`,
      got: describe(x),
      hint: `Cast the input: .to('${weight.dtype}'). The weights have the dtype in which the engine trains.`,
    });
  }
  if (x.device !== weight.device) throw deviceMixError(op, weight, x);
}

function dtypeMixError(op: string, a: Tensor, b: Tensor): DsError {
  return new DsError({
    code: 'DS_DTYPE',
    op,
    expected: `one dtype, as ${describe(a)}`,
    got: describe(b),
    hint: `Cast one of them: .to('${a.dtype}').`,
  });
}

function deviceMixError(op: string, a: Tensor, b: Tensor): DsError {
  return new DsError({
    code: 'DS_DEVICE',
    op,
    expected: `one device, as ${describe(a)} on ${a.device.name}`,
    got: `${describe(b)} on ${b.device.name}`,
    hint: `Move one of them: .to('${a.device.name}').`,
  });
}

/** Throws DS_DEVICE unless both are on one device. Their dtypes may differ. */
export function requireSameDevice(op: string, a: Tensor, b: Tensor): void {
  requireTensor(op, a);
  requireTensor(op, b);
  if (a.device !== b.device) throw deviceMixError(op, a, b);
}

/** Returns the shape of NumPy broadcasting. Throws DS_SHAPE if two sizes differ and none is 1. */
export function broadcastShape(op: string, a: readonly number[], b: readonly number[]): number[] {
  const ndim = Math.max(a.length, b.length);
  const out = new Array<number>(ndim);
  for (let d = 1; d <= ndim; ++d) {
    const x = a[a.length - d] ?? 1;
    const y = b[b.length - d] ?? 1;
    if (x !== y && x !== 1 && y !== 1) {
      throw shapeError(op, 'shapes that broadcast', `[${a.join(', ')}] and [${b.join(', ')}]`);
    }
    out[ndim - d] = x === 1 ? y : x;
  }
  return out;
}

/** Returns a view for kernels. It holds no reference: `of` must outlive the call. */
export function viewOf(
  of: View,
  shape: readonly number[],
  strides: readonly number[] = contiguousStrides(shape),
  offset = of.offset,
): View {
  return { buffer: of.buffer, dtype: of.dtype, offset, shape, strides };
}

/** Returns the strides of `of` broadcast to `shape`: 0 where elements repeat. */
export function expandedStrides(of: View, shape: readonly number[]): number[] {
  const lead = shape.length - of.shape.length;
  const strides = new Array<number>(shape.length).fill(0);
  for (let d = 0; d < of.shape.length; ++d) {
    const repeats = of.shape[d] === 1 && shape[lead + d] !== 1;
    strides[lead + d] = repeats ? 0 : required(of.strides[d]);
  }
  return strides;
}

/** Returns `of` broadcast to `shape`; `of` itself if it has that shape. */
export function expandView(of: View, shape: readonly number[]): View {
  return sameShape(of.shape, shape) ? of : viewOf(of, shape, expandedStrides(of, shape));
}

/** Returns a row-major copy, which the current scope owns. Not recorded. */
export function copyRowMajor(x: Tensor): Tensor {
  const out = Tensor.emptyLike(x);
  kernels.copy({ in: x, out });
  return out;
}

/** Returns the tensor itself if its strides are row-major, else a row-major copy. Not recorded. */
export function toRowMajor(x: Tensor): Tensor {
  return isContiguous(x) ? x : copyRowMajor(x);
}

/** Returns the tensor itself if its last stride is 1, else a row-major copy. Not recorded. */
export function toPackedRows(x: Tensor): Tensor {
  return x.strides[x.ndim - 1] === 1 ? x : toRowMajor(x);
}

/** Returns a contiguous tensor [..., C] as a matrix [N, C]. */
export function asRows(x: View): View {
  const { shape } = x;
  if (shape.length === 2) return x;
  const columns = shape[shape.length - 1] ?? 1;
  let rows = 1;
  for (let d = 0; d < shape.length - 1; ++d) rows *= required(shape[d]);
  return viewOf(x, [rows, columns], [columns, 1]);
}

/** Returns the number of rows of asRows(). */
export function rowCount(shape: readonly number[]): number {
  return numel(shape.slice(0, -1));
}

/** Sums `grad` over the dims that broadcasting added or repeated, into `out`. */
export function sumToShape(grad: View, out: View, accumulate: boolean): void {
  const ndim = grad.shape.length;
  const lead = ndim - out.shape.length;
  const shape = new Array<number>(ndim).fill(1);
  const strides = new Array<number>(ndim).fill(0);
  for (let d = lead; d < ndim; ++d) {
    shape[d] = required(out.shape[d - lead]);
    strides[d] = required(out.strides[d - lead]);
  }
  kernels.reduce({ in: grad, out: viewOf(out, shape, strides), op: 'sum', accumulate });
}

/** Computes target (+)= grad. */
export function addInto(target: View, grad: View, accumulate: boolean): void {
  if (accumulate) kernels.binary({ a: target, b: grad, out: target, op: 'add', accumulate: false });
  else kernels.copy({ in: grad, out: target });
}

/** Adds `grad`, the gradient of input `i` in its broadcast form, summed to the input's shape. */
export function addBroadcastGrad(sink: GradSink, i: number, grad: Tensor): void {
  if (sameShape(sink.shapeOf(i), grad.shape)) sink.addGrad(i, grad);
  else sink.write(i, (out, accumulate) => sumToShape(grad, out, accumulate));
}

/**
 * Lets `body` write the gradient of input `i` in its broadcast form `like`, and sums it to the
 * input's shape.
 */
export function writeBroadcast(
  sink: GradSink,
  i: number,
  like: Tensor,
  body: (out: Tensor, accumulate: boolean) => void,
): void {
  if (!sink.needs(i)) return;
  if (sameShape(sink.shapeOf(i), like.shape)) {
    sink.write(i, body);
    return;
  }
  const wide = Tensor.emptyLike(like);
  body(wide, false);
  sink.write(i, (out, accumulate) => sumToShape(wide, out, accumulate));
}

/**
 * Lets `body` write the gradients of several inputs at once: outs[k] belongs to input wanted[k] and
 * is null if it needs no gradient.
 */
export function writeTogether(
  sink: GradSink,
  wanted: readonly number[],
  body: (outs: readonly (Tensor | null)[], accumulate: readonly boolean[]) => void,
): void {
  const outs = new Array<Tensor | null>(wanted.length).fill(null);
  const adding = new Array<boolean>(wanted.length).fill(false);
  const open = (k: number): void => {
    if (k === wanted.length) body(outs, adding);
    else if (!sink.needs(required(wanted[k]))) open(k + 1);
    else {
      sink.write(required(wanted[k]), (out, accumulate) => {
        outs[k] = out;
        adding[k] = accumulate;
        open(k + 1);
      });
    }
  };
  open(0);
}

/** Records that `out` is a function of x with gradient 0. */
export function recordConstant(op: string, x: Tensor, out: Tensor): void {
  record(op, [x], [out], [], (_, sink) => {
    sink.write(0, (dx, accumulate) => {
      if (!accumulate) kernels.fill({ out: dx, value: 0 });
    });
  });
}

/** Runs `body` on `out`. If it must add but cannot, runs it on a temporary that is then added. */
export function overwriteOrAdd(
  out: Tensor,
  accumulate: boolean,
  body: (target: Tensor) => void,
): void {
  if (!accumulate) {
    body(out);
    return;
  }
  const fresh = Tensor.emptyLike(out);
  body(fresh);
  kernels.binary({ a: out, b: fresh, out, op: 'add', accumulate: false });
}

/** Returns a tensor of shape [] for use as a broadcast operand. */
export function constant(value: number, dtype: DType, device: Device): Tensor {
  const out = Tensor.empty([], dtype, device);
  kernels.fill({ out, value });
  return out;
}
