// Reductions over dims, the index of the maximum, and softmax.

import { DsError } from '../../errors.js';
import { isFloating } from '../../runtime/dtype.js';
import { argumentError } from '../../runtime/input-errors.js';
import type { ReduceOp } from '../../runtime/kernels.generated.js';
import * as kernels from '../../runtime/kernels.generated.js';
import { namesOf, readOptions } from '../../runtime/options.js';
import { leading, required } from '../../runtime/required.js';
import { describe, numel, type View } from '../../runtime/view.js';
import { scope } from '../scope.js';
import { record } from '../tape.js';
import { Tensor } from '../tensor.js';
import { cast } from './creation.js';
import {
  addInto,
  expandedStrides,
  expandView,
  normalizeDim,
  normalizeDims,
  requireTensor,
  toRowMajor,
  viewOf,
} from './shapes.js';
import { contiguous, narrow, transpose } from './views.js';

/** Options of a reduction. */
export interface ReduceOptions {
  /** Dims to reduce; negative dims count from the end. Default: all. */
  dims?: number | readonly number[];
  /** PyTorch's name of `dims`. */
  dim?: number | readonly number[];
  /** Whether reduced dims stay, with size 1. Default: false. */
  keepDim?: boolean;
}

/**
 * The options of a reduction, or only its dims: sum(x, 1), sum(x, [0, 1]), sum(x, { dims: 1,
 * keepDim: true }).
 */
export type Reduction = ReduceOptions | number | readonly number[];

/** Returns the options of a reduction, with `dim` as `dims`. */
export function readReduction(op: string, given: Reduction): ReduceOptions {
  if (typeof given === 'number' || Array.isArray(given)) return { dims: given };
  const { dims, dim, keepDim } = readOptions<ReduceOptions>(
    op,
    given as ReduceOptions,
    namesOf.ReduceOptions,
  );
  if (dims === undefined || dim === undefined) return { dims: dims ?? dim, keepDim };
  throw argumentError(
    op,
    '"dims" once',
    '"dims" and "dim"',
    'Both names mean the same option: remove one.',
  );
}

interface Reduced {
  /** The result in the requested shape. */
  out: Tensor;
  /** The input's shape with 1 at the reduced dims. */
  kept: number[];
  /** Number of elements per result. */
  count: number;
}

/** Returns the dims that a reduction of `x` covers, and the shape of its result. */
export function reductionOf(op: string, x: Tensor, options: Reduction) {
  const { dims, keepDim = false } = readReduction(op, options);
  const over = normalizeDims(op, dims, x.ndim);
  const kept = x.shape.map((size, d) => (over.includes(d) ? 1 : size));
  const shape = keepDim ? kept : x.shape.filter((_, d) => !over.includes(d));
  return { over, kept, shape };
}

function reduce(op: ReduceOp, x: Tensor, options: Reduction): Reduced {
  const { kept, shape } = reductionOf(op, x, options);
  const out = Tensor.empty(shape, x.dtype, x.device);
  kernels.reduce({ in: x, out: viewOf(out, kept), op, accumulate: false });
  return { out, kept, count: numel(x.shape) / Math.max(1, numel(kept)) };
}

/** Expands the gradient of a reduction over the reduced dims, without a copy. */
function expandGrad(grad: Tensor, kept: readonly number[], shape: readonly number[]): Tensor {
  const source = toRowMajor(grad);
  return source.alias(shape, expandedStrides(viewOf(source, kept), shape));
}

// Operations: reduction; methods too.

/**
 * Returns the sum over `dims`; f32 accumulation, the input's dtype; i64 for integers and bool, as
 * in PyTorch.
 */
export function sum(x: Tensor, options: Reduction = {}): Tensor {
  requireTensor('sum', x);
  if (!isFloating(x.dtype)) return sumIntegers(x, options);
  const { out, kept } = reduce('sum', x, options);
  const { shape } = x;
  record('sum', [x], [out], [], ([grad], sink) => {
    sink.addGrad(0, expandGrad(grad, kept, shape));
  });
  return out;
}

/** Elements that are widened to i64 at a time: 16 MiB. */
const WIDENED_ELEMENTS = 2 ** 21;

/** Returns a sum of integers in i64. Widens parts of a large tensor one after the other. */
function sumIntegers(x: Tensor, options: Reduction): Tensor {
  if (x.dtype === 'i64' || x.numel <= WIDENED_ELEMENTS) return reduceIntegers('sum', x, options);
  const { over, kept, shape } = reductionOf('sum', x, options);
  const out = Tensor.empty(shape, 'i64', x.device);
  const dim = outermost(x, Math.ceil(x.numel / WIDENED_ELEMENTS));
  const size = x.size(dim);
  const step = Math.max(1, Math.floor((WIDENED_ELEMENTS * size) / x.numel));
  const isReduced = over.includes(dim);
  for (let start = 0; start < size; start += step) {
    const count = Math.min(step, size - start);
    scope(() => {
      const all = out.alias(kept);
      const into = isReduced ? all : narrow(all, dim, start, count);
      const wide = cast(narrow(x, dim, start, count), 'i64');
      kernels.reduce({ in: wide, out: into, op: 'sum', accumulate: isReduced && start > 0 });
    });
  }
  return out;
}

/**
 * Returns the dim to divide into `parts`. It has the largest stride of all dims with enough
 * elements, so that its parts are contiguous. If no dim is long enough, returns the longest one.
 */
function outermost(x: Tensor, parts: number): number {
  const dims = x.shape.map((_, d) => d);
  const stride = (d: number): number => Math.abs(required(x.strides[d]));
  const [first] = dims.filter((d) => x.size(d) >= parts).sort((a, b) => stride(b) - stride(a));
  return first ?? x.shape.indexOf(Math.max(...x.shape));
}

/** Returns a sum or product of integers in i64. */
function reduceIntegers(op: 'sum' | 'prod', x: Tensor, options: Reduction): Tensor {
  const wide = cast(x, 'i64');
  const { out } = reduce(op, wide, options);
  if (wide !== x) wide.dispose();
  return out;
}

/**
 * Returns the mean over `dims`, floating dtypes; NaN without elements. Throws DS_DTYPE for other
 * dtypes.
 */
export function mean(x: Tensor, options: Reduction = {}): Tensor {
  requireTensor('mean', x);
  if (!isFloating(x.dtype)) {
    throw new DsError({
      code: 'DS_DTYPE',
      op: 'mean',
      expected: 'a floating dtype',
      got: describe(x),
      hint: "Cast it: .to('f32').mean().",
    });
  }
  const { out, kept, count } = reduce('mean', x, options);
  const { shape } = x;
  record('mean', [x], [out], [], ([grad], sink) => {
    const share = Tensor.emptyLike(grad);
    kernels.scale({
      in: grad,
      out: share,
      scale: 1 / count,
      shift: 0,
      accumulate: false,
    });
    sink.addGrad(0, expandGrad(share, kept, shape));
  });
  return out;
}

/**
 * Returns the product over `dims`; f32 accumulation, the input's dtype; i64 for integers and bool;
 * 1 without elements. The gradient is exact if elements are 0.
 */
export function prod(x: Tensor, options: Reduction = {}): Tensor {
  requireTensor('prod', x);
  if (!isFloating(x.dtype)) return reduceIntegers('prod', x, options);
  const { out, kept } = reduce('prod', x, options);
  const over = x.shape.map((_, d) => d).filter((d) => kept[d] !== x.shape[d]);
  record('prod', [x], [out], [x], ([grad], sink) => {
    sink.write(0, (dx, accumulate) => addProductSlope(x, grad, over, dx, accumulate));
  });
  return out;
}

/** Returns `of` as a view with the dims `over` at the end. */
function moveDimsLast(of: View, over: readonly number[]): View {
  const order = of.shape
    .map((_, d) => d)
    .sort((a, b) => +over.includes(a) - +over.includes(b) || a - b);
  const pick = (list: readonly number[]): number[] => order.map((d) => required(list[d]));
  return viewOf(of, pick(of.shape), pick(of.strides));
}

/**
 * Adds the gradient of prod() to dx. Running products need no division by an element, which may be
 * 0.
 */
function addProductSlope(
  x: Tensor,
  grad: Tensor,
  over: readonly number[],
  dx: Tensor,
  accumulate: boolean,
): void {
  const rows = grad.numel;
  if (x.numel === 0) return;
  const columns = x.numel / rows;
  const [values, slopes, last] = leading(
    [0, 1, 2].map(() => Tensor.empty([rows, columns], x.dtype, x.device)),
    3,
  );
  const reducedLast = moveDimsLast(x, over);
  kernels.copy({ in: reducedLast, out: viewOf(values, reducedLast.shape) });
  kernels.fill({ out: last, value: 0 });
  const column = viewOf(last, [rows], [columns], last.offset + columns - 1);
  kernels.copy({ in: viewOf(toRowMajor(grad), [rows]), out: column });
  kernels.cumprodBackward({ in: values, dout: last, dx: slopes, dim: 1, accumulate: false });
  addInto(moveDimsLast(dx, over), viewOf(slopes, reducedLast.shape), accumulate);
}

/** Returns the extremum. Elements that attain it share the gradient equally, as in torch.amax. */
function extremum(op: 'max' | 'min', x: Tensor, options: Reduction): Tensor {
  requireTensor(op, x);
  const { out, kept } = reduce(op, x, options);
  record(op, [x], [out], [x, out], ([grad], sink) => {
    const mask = Tensor.empty(x.shape, 'bool', x.device);
    kernels.compare({ a: x, b: expandView(viewOf(out, kept), x.shape), out: mask, op: 'eq' });
    const share = Tensor.emptyLike(x);
    kernels.copy({ in: mask, out: share });
    const ties = Tensor.empty(kept, x.dtype, x.device);
    kernels.reduce({ in: share, out: ties, op: 'sum', accumulate: false });
    const each = viewOf(toRowMajor(grad), kept);
    kernels.binary({ a: each, b: ties, out: ties, op: 'div', accumulate: false });
    sink.write(0, (dx, accumulate) =>
      kernels.binary({ a: share, b: expandView(ties, x.shape), out: dx, op: 'mul', accumulate }),
    );
  });
  return out;
}

/** Returns the largest value over `dims`. Throws DS_SHAPE without elements. */
export function max(x: Tensor, options: Reduction = {}): Tensor {
  return extremum('max', x, options);
}

/** Returns the smallest value over `dims`. Throws DS_SHAPE without elements. */
export function min(x: Tensor, options: Reduction = {}): Tensor {
  return extremum('min', x, options);
}

/**
 * Returns the index of the first maximum along `dim`, i64, without that dim; NaN counts as the
 * maximum.
 */
export function argmax(x: Tensor, dim = -1): Tensor {
  requireTensor('argmax', x);
  const at = normalizeDim('argmax', dim, x.ndim);
  const order = x.shape.map((_, d) => d).filter((d) => d !== at);
  order.push(at);
  const rows = x.alias(
    order.map((d) => required(x.shape[d])),
    order.map((d) => required(x.strides[d])),
  );
  const source = toRowMajor(rows);
  const out = Tensor.empty(rows.shape.slice(0, -1), 'i64', x.device);
  kernels.argMax({ in: source, out });
  if (source !== rows) source.dispose();
  rows.dispose();
  return out;
}

function softmaxLast(x: Tensor, log: boolean): Tensor {
  const source = contiguous(x);
  const out = Tensor.emptyLike(source);
  kernels.softmax({ in: source, out, log });
  record(log ? 'log_softmax' : 'softmax', [source], [out], [out], ([grad], sink) => {
    const dout = toRowMajor(grad);
    sink.write(0, (dx, accumulate) => kernels.softmaxBackward({ out, dout, dx, log, accumulate }));
  });
  return out;
}

function softmaxAlong(x: Tensor, dim: number, log: boolean): Tensor {
  requireTensor('softmax', x);
  const at = normalizeDim('softmax', dim, x.ndim);
  if (at === x.ndim - 1) return softmaxLast(x, log);
  return transpose(softmaxLast(transpose(x, at, -1), log), at, -1);
}

// Operations: functions; methods too.

/** Returns exp(x) / sum(exp(x)) along `dim`, numerically stable; floating dtypes. */
export function softmax(x: Tensor, dim = -1): Tensor {
  return softmaxAlong(x, dim, false);
}

/** Returns log(softmax(x)) along `dim`, numerically stable; floating dtypes. */
export function logSoftmax(x: Tensor, dim = -1): Tensor {
  return softmaxAlong(x, dim, true);
}
