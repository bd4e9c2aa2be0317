// Rearranged elements: copies, repetitions, flips, paddings and selections, each from views and one
// copy.

import { isFloating } from '../../runtime/dtype.js';
import { formatValue } from '../../runtime/format-value.js';
import { valueError } from '../../runtime/input-errors.js';
import * as kernels from '../../runtime/kernels.generated.js';
import { requireInteger, requireNumber, requireSizes } from '../../runtime/require-number.js';
import { leading, required } from '../../runtime/required.js';
import { describe, numel, type View } from '../../runtime/view.js';
import { requireRepresentable } from '../host-values.js';
import { record } from '../tape.js';
import { Tensor } from '../tensor.js';
import { arange } from './creation.js';
import { embedding, requireIndex } from './indexing.js';
import {
  addInto,
  copyRowMajor,
  listOf,
  normalizeDim,
  normalizeDims,
  requirePosition,
  requireTensor,
  type Sizes,
  shapeError,
  viewOf,
} from './shapes.js';
import {
  concat,
  expand,
  narrow,
  permute,
  reshape,
  slice,
  split,
  squeeze,
  unsqueeze,
} from './views.js';

// Operations: copies; methods too.

/** Returns a row-major copy. Differentiable. */
export function clone(x: Tensor): Tensor {
  requireTensor('clone', x);
  const out = copyRowMajor(x);
  record('clone', [x], [out], [], ([grad], sink) => sink.addGrad(0, grad));
  return out;
}

/**
 * Tiles x: repeats[d] times along dim d, new dims in front, as torch.Tensor.repeat. Throws DS_SHAPE
 * if the sizes do not fit.
 */
export function repeat(x: Tensor, ...repeats: Sizes): Tensor {
  requireTensor('repeat', x);
  const times = requireSizes('repeat', listOf(repeats));
  const lead = times.length - x.ndim;
  if (lead < 0) {
    throw shapeError('repeat', `a number for each dim of ${describe(x)}`, `[${times.join(', ')}]`);
  }
  let out = reshape(x, [...new Array<number>(lead).fill(1), ...x.shape]);
  for (const [d, count] of times.entries()) {
    if (count !== 1) out = repeatAlong(out, d, d, count);
  }
  return out === x ? clone(x) : out;
}

/**
 * Repeats each element of `dim` `count` times in a row; without `dim`, the elements of the
 * flattened tensor. As torch.repeat_interleave.
 */
export function repeatInterleave(x: Tensor, count: number, dim?: number): Tensor {
  requireTensor('repeatInterleave', x);
  requireInteger('repeatInterleave count', count, 0);
  const source = dim === undefined ? reshape(x, [x.numel]) : x;
  const at = normalizeDim('repeatInterleave', dim ?? 0, source.ndim);
  return repeatAlong(source, at, at + 1, count);
}

/** Repeats x along a new dim of `count` at `inserted` (`dim` or `dim` + 1), merged into `dim`. */
function repeatAlong(x: Tensor, dim: number, inserted: number, count: number): Tensor {
  const expandedDim = unsqueeze(x, inserted);
  const shape = x.shape.with(dim, required(x.shape[dim]) * count);
  return reshape(expand(expandedDim, expandedDim.shape.with(inserted, count)), shape);
}

/** Returns the slices of `dim` at `index` [n]. Not recorded. */
function takeAlong(x: Tensor, dim: number, index: View): Tensor {
  const shape = x.shape.with(dim, required(index.shape[0]));
  const out = Tensor.empty(shape, x.dtype, x.device);
  const strides = new Array<number>(x.ndim).fill(0).with(dim, required(index.strides[0]));
  kernels.gather({ in: x, index: viewOf(index, shape, strides), out, dim });
  return out;
}

function reverse(x: Tensor, dims: readonly number[]): Tensor {
  let out = x;
  for (const dim of dims) {
    const size = required(x.shape[dim]);
    const start = Math.max(0, size - 1);
    const descending = arange(size, { start, step: -1, dtype: 'i64', device: x.device });
    const next = takeAlong(out, dim, descending);
    descending.dispose();
    if (out !== x) out.dispose();
    out = next;
  }
  return out === x ? copyRowMajor(x) : out;
}

/** Reverses the order of `dims`. Default: all dims. */
export function flip(x: Tensor, dims?: number | readonly number[]): Tensor {
  requireTensor('flip', x);
  const flipped = normalizeDims('flip', dims, x.ndim);
  const out = reverse(x, flipped);
  record('flip', [x], [out], [], ([grad], sink) => sink.addGrad(0, reverse(grad, flipped)));
  return out;
}

/**
 * Moves element i of `dim` to i + shift; elements that leave re-enter at the start. Without dims x
 * is treated as flattened.
 */
export function roll(
  x: Tensor,
  shifts: number | readonly number[],
  dims?: number | readonly number[],
): Tensor {
  requireTensor('roll', x);
  const shiftList = [shifts].flat();
  for (const shift of shiftList) requireInteger('roll shift', shift, Number.NEGATIVE_INFINITY);
  if (dims === undefined) {
    if (shiftList.length === 1) return reshape(roll(reshape(x, [x.numel]), shiftList, 0), x.shape);
    throw shapeError('roll', 'one shift without dims', `[${shiftList.join(', ')}]`);
  }
  const dimList = [dims].flat();
  if (dimList.length !== shiftList.length) {
    throw shapeError(
      'roll',
      `${shiftList.length} dims, one for each shift`,
      `[${dimList.join(', ')}]`,
    );
  }
  return dimList.reduce((out, dim, i) => rollTensor(out, required(shiftList[i]), dim), x);
}

function rollTensor(x: Tensor, shift: number, dim: number): Tensor {
  const size = required(x.shape[normalizeDim('roll', dim, x.ndim)]);
  if (size === 0) return clone(x);
  const start = ((-shift % size) + size) % size || 0;
  return concat([slice(x, dim, start), slice(x, dim, 0, start)], dim);
}

// Operations: views; methods too.

/**
 * Splits x into `count` views along `dim` of one size; the last may be smaller. Returns fewer views
 * if the size does not suffice, as torch.chunk.
 */
export function chunk(x: Tensor, count: number, dim = 0): Tensor[] {
  requireTensor('chunk', x);
  requireInteger('chunk count', count, 1);
  const size = required(x.shape[normalizeDim('chunk', dim, x.ndim)]);
  if (size === 0) return split(x, new Array<number>(count).fill(0), dim);
  return split(x, Math.ceil(size / count), dim);
}

/** Returns the slices along `dim`, without that dim; views with one backward for all. */
export function unbind(x: Tensor, dim = 0): Tensor[] {
  requireTensor('unbind', x);
  const size = required(x.shape[normalizeDim('unbind', dim, x.ndim)]);
  return size === 0 ? [] : split(x, 1, dim).map((part) => squeeze(part, dim));
}

/** Returns dims `source` moved to `destination`, the others in their order. */
export function movedim(
  x: Tensor,
  source: number | readonly number[],
  destination: number | readonly number[],
): Tensor {
  requireTensor('movedim', x);
  const [from, to] = leading(
    [source, destination].map((dims) =>
      [dims].flat().map((dim) => normalizeDim('movedim', dim, x.ndim)),
    ),
    2,
  );
  const isPaired = from.length === to.length && new Set(to).size === to.length;
  if (!isPaired || new Set(from).size !== from.length) {
    throw shapeError('movedim', 'as many distinct places as dims', `[${from}] to [${to}]`);
  }
  const unmoved = x.shape.map((_, d) => d).filter((d) => !from.includes(d));
  const order = x.shape.map((_, d) => (to.includes(d) ? required(from[to.indexOf(d)]) : -1));
  return permute(
    x,
    order.map((d) => (d < 0 ? required(unmoved.shift()) : d)),
  );
}

/** Splits dim `dim` into `sizes`, one of which may be -1. */
export function unflatten(x: Tensor, dim: number, sizes: readonly number[]): Tensor {
  requireTensor('unflatten', x);
  const at = normalizeDim('unflatten', dim, x.ndim);
  // A scalar has no dim, but dim 0 is accepted, as in PyTorch.
  const size = x.shape[at] ?? 1;
  if (!Array.isArray(sizes) || !sizes.every(Number.isInteger)) {
    const hint = typeof sizes === 'number' ? `Sizes are a list: [${sizes}].` : '';
    throw shapeError('unflatten', 'sizes, a list of integers', formatValue(sizes), hint);
  }
  const known = sizes.filter((each) => each !== -1);
  const inferred = size / Math.max(1, numel(known));
  const parts = sizes.map((each) => (each === -1 ? inferred : each));
  if (numel(parts) !== size || sizes.length - known.length > 1 || !Number.isInteger(inferred)) {
    throw shapeError('unflatten', `sizes with the product ${size}`, `[${sizes.join(', ')}]`);
  }
  return reshape(x, [...x.shape.slice(0, at), ...parts, ...x.shape.slice(at + 1)]);
}

/**
 * Returns the diagonal of dims `first` and `second`, `offset` columns to the right, as a new last
 * dim. A view.
 */
export function diagonal(x: Tensor, offset = 0, first = 0, second = 1): Tensor {
  requireTensor('diagonal', x);
  requirePosition('diagonal', offset);
  const [a, b] = leading(
    [first, second].map((dim) => normalizeDim('diagonal', dim, x.ndim)),
    2,
  );
  if (a === b) throw shapeError('diagonal', 'two dims', `dim ${a} twice`);
  const [down, right] = [Math.max(0, -offset), Math.max(0, offset)];
  const lengths = [required(x.shape[a]) - down, required(x.shape[b]) - right];
  const count = Math.max(0, Math.min(...lengths));
  const diagonalOf = (of: View): View => {
    const [p, q] = [required(of.strides[a]), required(of.strides[b])];
    const keep = (list: readonly number[]) => list.filter((_, d) => d !== a && d !== b);
    const start = of.offset + (count > 0 ? down * p + right * q : 0);
    return viewOf(of, [...keep(of.shape), count], [...keep(of.strides), p + q], start);
  };
  const { shape, strides, offset: at } = diagonalOf(x);
  const out = x.alias(shape, strides, at);
  record('diagonal', [x], [out], [], ([grad], sink) => {
    sink.write(0, (dx, accumulate) => {
      if (!accumulate) kernels.fill({ out: dx, value: 0 });
      addInto(diagonalOf(dx), grad, accumulate);
    });
  });
  return out;
}

/**
 * Values of padding: mirrored at the border elements, repeated border elements, or the opposite
 * end.
 */
export type PadMode = 'reflect' | 'replicate' | 'circular';

/** Returns the index of the element for position i of the padded line of `size`. */
const sourceIndex: Record<PadMode, (i: number, size: number) => number> = {
  reflect: (i, size) => (i < 0 ? -i : i < size ? i : 2 * (size - 1) - i),
  replicate: (i, size) => Math.min(Math.max(i, 0), size - 1),
  circular: (i, size) => (i + size) % size,
};

/** Largest padding of a mode for a line of `size`. */
const maxPadding: Record<PadMode, (size: number) => number> = {
  reflect: (size) => Math.max(0, size - 1),
  replicate: (size) => (size > 0 ? Number.POSITIVE_INFINITY : 0),
  circular: (size) => size,
};

function padByMode(x: Tensor, sides: readonly Side[], mode: PadMode): Tensor {
  let out = x;
  for (const [d, [before, after]] of sides.entries()) {
    if (before === 0 && after === 0) continue;
    const size = required(x.shape[d]);
    const max = maxPadding[mode](size);
    if (Math.max(before, after) > max) {
      const expected = `padding of at most ${max} on dim ${d} of ${describe(x)} with "${mode}"`;
      throw shapeError('pad', expected, `[${before}, ${after}]`);
    }
    const length = before + size + after;
    const sources = Array.from({ length }, (_, i) => sourceIndex[mode](i - before, size));
    const index = Tensor.from(sources, { shape: [length], dtype: 'i64', device: x.device });
    out = indexSelect(out, d, index);
    index.dispose();
  }
  return out === x ? clone(x) : out;
}

// Operations: copies; methods too.

/**
 * Pads x: padding [before, after] for the last dim, then for the previous dim, and so on, as
 * torch.nn.functional.pad. A negative number crops. `fill` is a number or a mode: "reflect" (at
 * most size - 1), "replicate" or "circular" (at most size). Throws DS_SHAPE if the sizes do not
 * fit, DS_ARGUMENT for an unknown mode, or if `padding` has no two numbers for each padded dim.
 */
export function pad(x: Tensor, padding: readonly number[], fill: number | PadMode = 0): Tensor {
  requireTensor('pad', x);
  const mode = typeof fill === 'string' ? requireMode(fill) : null;
  if (mode === null) requireRepresentable('pad', requireNumber('pad fill', fill), x.dtype);
  if (!Array.isArray(padding) || padding.length % 2 !== 0 || padding.length > 2 * x.ndim) {
    const expected = `[before, after] for the last dims of ${describe(x)}`;
    throw valueError('pad', expected, padding);
  }
  for (const each of padding) requirePosition('pad', each);
  const sides = x.shape.map((_, d) => {
    const i = 2 * (x.ndim - 1 - d);
    return [padding[i] ?? 0, padding[i + 1] ?? 0] as const;
  });
  const shape = x.shape.map((size, d) => size + required(sides[d])[0] + required(sides[d])[1]);
  requireSizes('pad', shape);
  if (mode !== null) return padByMode(x, sides, mode);
  let inner = x;
  for (const [d, [before, after]] of sides.entries()) {
    const size = required(x.shape[d]) + Math.min(0, before) + Math.min(0, after);
    if (size !== x.shape[d]) inner = narrow(inner, d, Math.max(0, -before), Math.max(0, size));
  }
  return padWithValue(inner, shape, sides, fill as number);
}

function requireMode(mode: string): PadMode {
  if (Object.hasOwn(sourceIndex, mode)) return mode as PadMode;
  throw valueError(
    'pad',
    `a number, or ${Object.keys(sourceIndex)
      .map((name) => `"${name}"`)
      .join(', ')}`,
    mode,
    mode === 'constant' ? 'Pass the number: pad(x, [1, 1], 0).' : '',
  );
}

type Side = readonly [before: number, after: number];

function padWithValue(x: Tensor, shape: number[], sides: readonly Side[], value: number): Tensor {
  const out = Tensor.empty(shape, x.dtype, x.device);
  kernels.fill({ out, value });
  const interiorOf = (of: View): View => {
    const skip = sides.reduce(
      (sum, [before], d) => sum + Math.max(0, before) * required(of.strides[d]),
      0,
    );
    return viewOf(of, x.shape, of.strides, x.numel > 0 ? of.offset + skip : of.offset);
  };
  kernels.copy({ in: x, out: interiorOf(out) });
  record('pad', [x], [out], [], ([grad], sink) => {
    const { shape: from, strides, offset } = interiorOf(grad);
    sink.addGrad(0, grad.alias(from, strides, offset));
  });
  return out;
}

// Operations: choice; methods too.

/**
 * Returns the elements of `dim` at `index` [n] (i32 or i64), in that order; repeated indices repeat
 * elements. Throws DS_SHAPE, DS_INDEX (CPU).
 */
export function indexSelect(x: Tensor, dim: number, index: Tensor): Tensor {
  requireIndex('indexSelect', x, index);
  const at = normalizeDim('indexSelect', dim, x.ndim);
  if (index.ndim !== 1) throw shapeError('indexSelect', 'an index [n]', describe(index));
  if (!isFloating(x.dtype)) return takeAlong(x, at, index);
  const front = movedim(x, at, 0);
  const rest = front.shape.slice(1);
  const rows = embedding(reshape(front, [required(x.shape[at]), numel(rest)]), index);
  return movedim(reshape(rows, [index.numel, ...rest]), 0, at);
}
