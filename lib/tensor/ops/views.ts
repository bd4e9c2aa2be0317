// Views: the same memory under another shape. The backward writes into part of the gradient.

import * as kernels from '../../runtime/kernels.generated.js';
import { requireInteger, requireSizes } from '../../runtime/require-number.js';
import { leading, required } from '../../runtime/required.js';
import { describe, isContiguous, numel, type View } from '../../runtime/view.js';
import { record } from '../tape.js';
import { Tensor } from '../tensor.js';
import {
  addInto,
  expandedStrides,
  listOf,
  normalizeDim,
  requirePosition,
  requireSameType,
  requireTensor,
  requireTensors,
  type Sizes,
  sameShape,
  shapeError,
  sumToShape,
  toRowMajor,
  viewOf,
} from './shapes.js';

// Operations: copies; methods too.

/** Returns a copy with row-major strides; the tensor itself if it has them. */
export function contiguous(x: Tensor): Tensor {
  requireTensor('contiguous', x);
  if (isContiguous(x)) return x;
  const out = toRowMajor(x);
  record('contiguous', [x], [out], [], ([grad], sink) => sink.addGrad(0, grad));
  return out;
}

/**
 * Returns `shape` with its -1 replaced by the remaining size. Throws DS_SHAPE if the number of
 * elements differs.
 */
function resolveShape(x: Tensor, shape: readonly number[]): readonly number[] {
  const unknown = shape.indexOf(-1);
  const known = unknown < 0 ? shape : shape.toSpliced(unknown, 1);
  requireSizes('reshape', known);
  const total = numel(known);
  if (unknown < 0 && total === x.numel) return shape;
  const size = x.numel / total;
  if (unknown < 0 || !Number.isInteger(size)) {
    throw shapeError('reshape', `${x.numel} elements, as ${describe(x)}`, `[${shape.join(', ')}]`);
  }
  return shape.with(unknown, size);
}

// Operations: views; methods too.

/**
 * Returns the same elements in row-major order; one size may be -1. A view if x is contiguous, else
 * a copy.
 */
export function reshape(x: Tensor, ...shape: Sizes): Tensor {
  requireTensor('reshape', x);
  const target = resolveShape(x, listOf(shape));
  const source = contiguous(x);
  const out = source.alias(target);
  const from = x.shape;
  record('reshape', [source], [out], [], ([grad], sink) => {
    sink.addGrad(0, toRowMajor(grad).alias(from));
  });
  return out;
}

/** Returns reshape() without a copy. Throws DS_SHAPE if x is not contiguous. */
export function view(x: Tensor, ...shape: Sizes): Tensor {
  requireTensor('view', x);
  if (isContiguous(x)) return reshape(x, ...shape);
  throw shapeError('view', 'a contiguous tensor', `${describe(x)} with strides`, 'Use reshape().');
}

/**
 * Returns x with dims `from` to `to`, both included, merged; row-major. A view if x is contiguous.
 * Throws DS_SHAPE if the sizes do not fit.
 */
export function flatten(x: Tensor, from = 0, to = -1): Tensor {
  requireTensor('flatten', x);
  if (x.ndim === 0) return reshape(x, [1]);
  const first = normalizeDim('flatten', from, x.ndim);
  const last = normalizeDim('flatten', to, x.ndim);
  const middle = numel(x.shape.slice(first, last + 1));
  return reshape(x, [...x.shape.slice(0, first), middle, ...x.shape.slice(last + 1)]);
}

function permuteTensor(x: Tensor, order: readonly number[]): Tensor {
  return x.alias(
    order.map((d) => required(x.shape[d])),
    order.map((d) => required(x.strides[d])),
  );
}

/** Returns dims in another order: out's dim d is x's dim order[d]. */
export function permute(x: Tensor, ...axes: Sizes): Tensor {
  requireTensor('permute', x);
  const order = listOf(axes);
  const dims = order.map((d) => normalizeDim('permute', d, x.ndim));
  if (dims.length !== x.ndim || new Set(dims).size !== x.ndim) {
    throw shapeError('permute', `an order of ${x.ndim} dims`, `[${order.join(', ')}]`);
  }
  const out = permuteTensor(x, dims);
  record('permute', [x], [out], [], ([grad], sink) => {
    const inverse = dims.map((_, d) => dims.indexOf(d));
    sink.addGrad(0, permuteTensor(grad, inverse));
  });
  return out;
}

/** Swaps two dims; default the last two. */
export function transpose(x: Tensor, first = -2, second = -1): Tensor {
  requireTensor('transpose', x);
  const order = x.shape.map((_, d) => d);
  const a = normalizeDim('transpose', first, x.ndim);
  const b = normalizeDim('transpose', second, x.ndim);
  order[a] = b;
  order[b] = a;
  return permute(x, order);
}

/**
 * Returns x repeated to `shape` without a copy; -1 keeps a size. Throws DS_SHAPE if the sizes do
 * not fit.
 */
export function expand(x: Tensor, ...sizes: Sizes): Tensor {
  requireTensor('expand', x);
  const shape = listOf(sizes);
  const lead = shape.length - x.ndim;
  const target = shape.map((size, d) => (size === -1 ? (x.shape[d - lead] ?? -1) : size));
  const fits = x.shape.every((size, d) => size === 1 || size === target[lead + d]);
  if (lead < 0 || !fits || !target.every((size) => Number.isSafeInteger(size) && size >= 0)) {
    throw shapeError('expand', `a shape that ${describe(x)} repeats to`, `[${shape.join(', ')}]`);
  }
  if (sameShape(x.shape, target)) return x;
  const out = x.alias(target, expandedStrides(x, target));
  record('expand', [x], [out], [], ([grad], sink) => {
    sink.write(0, (dx, accumulate) => sumToShape(grad, dx, accumulate));
  });
  return out;
}

/**
 * Returns x with a dim of size 1 before dim `dim`: a view. Negative dims count from the end of the
 * new shape. Throws DS_SHAPE if the sizes do not fit.
 */
export function unsqueeze(x: Tensor, dim: number): Tensor {
  requireTensor('unsqueeze', x);
  const at = normalizeDim('unsqueeze', dim, x.ndim + 1);
  const strides = [...x.strides];
  strides.splice(at, 0, (x.shape[at] ?? 1) * (x.strides[at] ?? 1));
  return relabel('unsqueeze', x, [...x.shape.slice(0, at), 1, ...x.shape.slice(at)], strides);
}

/** Removes dim `dim`, which must have size 1. Default: every dim of size 1. */
export function squeeze(x: Tensor, dim?: number): Tensor {
  requireTensor('squeeze', x);
  const at = dim === undefined ? -1 : normalizeDim('squeeze', dim, x.ndim);
  if (at >= 0 && x.shape[at] !== 1)
    throw shapeError('squeeze', 'size 1', `${describe(x)}, dim ${at}`);
  const kept = x.shape.map((_, d) => d).filter((d) => (at < 0 ? x.shape[d] !== 1 : d !== at));
  const pick = (list: readonly number[]): number[] => kept.map((d) => required(list[d]));
  return relabel('squeeze', x, pick(x.shape), pick(x.strides));
}

/** Returns a view that only adds or drops dims of size 1. */
function relabel(op: string, x: Tensor, shape: number[], strides: number[]): Tensor {
  const out = x.alias(shape, strides);
  const from = x.shape;
  record(op, [x], [out], [], ([grad], sink) => {
    const g = grad;
    if (isContiguous(g)) sink.addGrad(0, g.alias(from));
    else sink.write(0, (dx, accumulate) => addInto(viewOf(dx, shape), g, accumulate));
  });
  return out;
}

interface Slice {
  shape: readonly number[];
  strides: readonly number[];
  offset: number;
}

/** Returns the layout of `count` elements of `dim`: start, start + step, ... */
function sliceOf(x: View, dim: number, start: number, count: number, step = 1): Slice {
  const shape = [...x.shape];
  const strides = [...x.strides];
  shape[dim] = count;
  const stride = required(strides[dim]);
  strides[dim] = stride * step;
  return { shape, strides, offset: count > 0 ? x.offset + start * stride : x.offset };
}

/**
 * Returns the elements [start, end) of `dim` in steps of `step` > 0; negative bounds count from the
 * end. A view.
 */
export function slice(x: Tensor, dim: number, start = 0, end?: number, step = 1): Tensor {
  requireTensor('slice', x);
  const at = normalizeDim('slice', dim, x.ndim);
  const size = required(x.shape[at]);
  requirePosition('slice', start);
  requirePosition('slice', end ?? size);
  if (!Number.isInteger(step) || step < 1)
    throw shapeError('slice', 'a step of 1 or more', `${step}`);
  const clamp = (i: number): number => Math.min(Math.max(i < 0 ? i + size : i, 0), size);
  const from = clamp(start);
  const count = Math.max(0, Math.ceil((clamp(end ?? size) - from) / step));
  const cut = sliceOf(x, at, from, count, step);
  const out = x.alias(cut.shape, cut.strides, cut.offset);
  record('slice', [x], [out], [], ([grad], sink) => {
    sink.write(0, (dx, accumulate) => {
      if (!accumulate) kernels.fill({ out: dx, value: 0 });
      const ofGrad = sliceOf(dx, at, from, count, step);
      addInto(viewOf(dx, ofGrad.shape, ofGrad.strides, ofGrad.offset), grad, accumulate);
    });
  });
  return out;
}

/**
 * Returns `length` elements of `dim` from `start`. A view. Throws DS_SHAPE if they exceed the dim.
 */
export function narrow(x: Tensor, dim: number, start: number, length: number): Tensor {
  requireTensor('narrow', x);
  const size = x.size(dim);
  requirePosition('narrow', start);
  requirePosition('narrow', length);
  if (start < 0 || length < 0 || start + length > size) {
    throw shapeError('narrow', `a range inside [0, ${size})`, `[${start}, ${start + length})`);
  }
  return slice(x, dim, start, start + length);
}

/**
 * Returns the slice at `index` of `dim`, without that dim. A view. Throws DS_SHAPE if the sizes do
 * not fit.
 */
export function select(x: Tensor, dim: number, index: number): Tensor {
  requireTensor('select', x);
  const size = x.size(dim);
  requirePosition('select', index);
  const at = index < 0 ? index + size : index;
  if (at < 0 || at >= size) throw shapeError('select', `an index in [0, ${size})`, `${index}`);
  return squeeze(slice(x, dim, at, at + 1), dim);
}

/**
 * Returns the size of each part of a dim of `size`. Throws DS_SHAPE unless the sizes add up to
 * `size`.
 */
function splitSizes(size: number, sizes: number | readonly number[]): readonly number[] {
  if (typeof sizes === 'number') {
    const each = requireInteger('split size', sizes, 1);
    return Array.from({ length: Math.ceil(size / each) }, (_, i) =>
      Math.min(each, size - i * each),
    );
  }
  const list = requireSizes('split', sizes);
  const total = list.reduce((sum, n) => sum + n, 0);
  if (total === size) return list;
  const hint = 'For parts of one size, pass a number: split(2).';
  throw shapeError('split', `sizes that add up to ${size}`, `[${list.join(', ')}]`, hint);
}

/**
 * Returns views of `x` along `dim`, of `sizes` (or of one size; the last view may be smaller). All
 * views have one backward.
 */
export function split(x: Tensor, sizes: number | readonly number[], dim = 0): Tensor[] {
  requireTensor('split', x);
  const at = normalizeDim('split', dim, x.ndim);
  const list = splitSizes(required(x.shape[at]), sizes);
  let start = 0;
  const outs = list.map((count) => {
    const cut = sliceOf(x, at, start, count);
    start += count;
    return x.alias(cut.shape, cut.strides, cut.offset);
  });
  record('split', [x], outs, [], (grads, sink) => {
    sink.write(0, (dx, accumulate) => {
      let from = 0;
      grads.forEach((grad, i) => {
        const ofGrad = sliceOf(dx, at, from, required(list[i]));
        const target = viewOf(dx, ofGrad.shape, ofGrad.strides, ofGrad.offset);
        from += required(list[i]);
        if (grad) addInto(target, grad, accumulate);
        else if (!accumulate) kernels.fill({ out: target, value: 0 });
      });
    });
  });
  return outs;
}

// Operations: copies.

/** Concatenates tensors along `dim`; the other sizes, dtypes and devices must agree. */
export function concat(tensors: readonly Tensor[], dim = 0): Tensor {
  requireTensors('concat', tensors);
  const first = tensors[0];
  if (!first) throw shapeError('concat', 'at least one tensor', 'none');
  const at = normalizeDim('concat', dim, first.ndim);
  let total = 0;
  for (const t of tensors) {
    requireSameType('concat', first, t);
    if (t.ndim !== first.ndim || t.shape.some((n, d) => d !== at && n !== first.shape[d])) {
      throw shapeError('concat', `${describe(first)} except for dim ${at}`, describe(t));
    }
    total += required(t.shape[at]);
  }
  const shape = first.shape.map((n, d) => (d === at ? total : n));
  const out = Tensor.empty(shape, first.dtype, first.device);
  const starts: number[] = [];
  let start = 0;
  for (const t of tensors) {
    const cut = sliceOf(out, at, start, required(t.shape[at]));
    kernels.copy({ in: t, out: viewOf(out, cut.shape, cut.strides, cut.offset) });
    starts.push(start);
    start += required(t.shape[at]);
  }
  const sizes = tensors.map((t) => required(t.shape[at]));
  record('concat', tensors, [out], [], ([grad], sink) => {
    const g = grad;
    starts.forEach((from, i) => {
      const cut = sliceOf(g, at, from, required(sizes[i]));
      sink.addGrad(i, g.alias(cut.shape, cut.strides, cut.offset));
    });
  });
  return out;
}

/** PyTorch's other name of concat. */
export const cat = concat;

/** Returns tensors of one shape along a new dim. */
export function stack(tensors: readonly Tensor[], dim = 0): Tensor {
  requireTensors('stack', tensors);
  for (const tensor of tensors) {
    const [first] = leading(tensors, 1);
    if (sameShape(first.shape, tensor.shape)) continue;
    throw shapeError('stack', `tensors of one shape, as ${describe(first)}`, describe(tensor));
  }
  return concat(
    tensors.map((t) => unsqueeze(t, dim)),
    dim,
  );
}
