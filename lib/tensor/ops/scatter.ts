// Scatter: stores or adds elements at indices.

import * as kernels from '../../runtime/kernels.generated.js';
import { requireNumber } from '../../runtime/require-number.js';
import { required } from '../../runtime/required.js';
import { describe, type View } from '../../runtime/view.js';
import { requireRepresentable } from '../host-values.js';
import { type GradSink, record } from '../tape.js';
import { Tensor } from '../tensor.js';
import { arange } from './creation.js';
import { requireIndex, sliceFor } from './indexing.js';
import {
  addInto,
  constant,
  copyRowMajor,
  expandView,
  normalizeDim,
  requireSameType,
  sameShape,
  shapeError,
  viewOf,
} from './shapes.js';

/**
 * Returns the elements of `src` that `index` uses: the first elements of each dim. Throws DS_SHAPE
 * if `src` is smaller than `index`.
 */
function chooseSource(op: string, src: View, index: View): View {
  const fits = (n: number, d: number) => n <= required(src.shape[d]);
  if (index.shape.length !== src.shape.length || !index.shape.every(fits)) {
    const expected = `an index of at most the size of the source, ${describe(src)}`;
    throw shapeError(op, expected, describe(index));
  }
  return viewOf(src, index.shape, src.strides);
}

/** Adds the gradient of input 1, of shape `shape`: `slice` for its used elements, 0 elsewhere. */
function addSliceGrad(sink: GradSink, shape: readonly number[], slice: Tensor): void {
  if (sameShape(shape, slice.shape)) {
    sink.addGrad(1, slice);
    return;
  }
  sink.write(1, (out, accumulate) => {
    if (!accumulate) kernels.fill({ out, value: 0 });
    addInto(viewOf(out, slice.shape, out.strides), slice, true);
  });
}

/** Returns the elements of `whole` at `index`. Not recorded. */
function gatherUnrecorded(whole: Tensor, dim: number, index: Tensor): Tensor {
  const out = Tensor.empty(index.shape, whole.dtype, whole.device);
  kernels.gather({ in: sliceFor('gather', whole, dim, index), index, out, dim });
  return out;
}

/**
 * Returns the gradient of src: `grad` at elements that the result contains, 0 at overwritten
 * elements.
 */
function gradOfStored(grad: Tensor, dim: number, index: Tensor): Tensor {
  const { device, shape } = index;
  const numbers = arange(required(shape[dim]), { dtype: 'i64', device });
  const number = expandView(
    viewOf(
      numbers,
      shape.map((n, d) => (d === dim ? n : 1)),
    ),
    shape,
  );
  const owners = Tensor.empty(grad.shape, 'i64', device);
  kernels.scatter({ src: number, index, out: sliceFor('scatter', owners, dim, index), dim });
  const owner = gatherUnrecorded(owners, dim, index);
  const isWinner = Tensor.empty(shape, 'bool', device);
  kernels.compare({ a: owner, b: number, out: isWinner, op: 'eq' });
  const out = gatherUnrecorded(grad, dim, index);
  const nothing = expandView(constant(0, grad.dtype, device), shape);
  kernels.where({ condition: isWinner, a: out, b: nothing, out });
  return out;
}

// Operations: choice; methods too.

/**
 * Returns x with `src`, a tensor of x's dtype or a number, stored at `index` (i32 or i64): out[..,
 * index[.., j, ..], ..] = src[.., j, ..] along `dim`, as torch.scatter. If several j have one
 * index, the last j wins on every device. `index` has src's sizes or less, and x's or less except
 * along `dim`. Differentiable in x and src. Throws DS_SHAPE, DS_DTYPE, DS_DEVICE, DS_INDEX (CPU; a
 * GPU skips a bad index).
 */
export function scatter(x: Tensor, dim: number, index: Tensor, src: Tensor | number): Tensor {
  requireIndex('scatter', x, index);
  if (src instanceof Tensor) requireSameType('scatter', x, src);
  else requireRepresentable('scatter', requireNumber('scatter src', src), x.dtype);
  const at = normalizeDim('scatter', dim, x.ndim);
  const write = (into: Tensor, values: Tensor | number): void => {
    const isTensor = values instanceof Tensor;
    const from = isTensor
      ? values
      : expandView(constant(values, into.dtype, into.device), index.shape);
    const out = sliceFor('scatter', into, at, index);
    kernels.scatter({ src: chooseSource('scatter', from, index), index, out, dim: at });
  };
  const out = copyRowMajor(x);
  write(out, src);
  const inputs = src instanceof Tensor ? [x, src] : [x];
  record('scatter', inputs, [out], [index], ([grad], sink) => {
    const g = grad;
    if (sink.needs(0)) {
      const rest = copyRowMajor(g);
      write(rest, 0);
      sink.addGrad(0, rest);
    }
    if (src instanceof Tensor && sink.needs(1)) {
      addSliceGrad(sink, src.shape, gradOfStored(g, at, index));
    }
  });
  return out;
}

/**
 * Returns x with `src` added at `index` (i32 or i64): out[.., index[.., j, ..], ..] += src[.., j,
 * ..] along `dim`, as torch.scatter_add. Any number of elements may share an index, and every run
 * gives the same result, also on a GPU. Sizes and errors as in scatter(); bool throws DS_DTYPE.
 * Differentiable in x and src.
 */
export function scatterAdd(x: Tensor, dim: number, index: Tensor, src: Tensor): Tensor {
  requireIndex('scatterAdd', x, index);
  requireSameType('scatterAdd', x, src);
  const at = normalizeDim('scatterAdd', dim, x.ndim);
  const out = copyRowMajor(x);
  const target = sliceFor('scatterAdd', out, at, index);
  const from = chooseSource('scatterAdd', src, index);
  kernels.scatterAdd({ src: from, index, out: target, dim: at, accumulate: true });
  record('scatterAdd', [x, src], [out], [index], ([grad], sink) => {
    sink.addGrad(0, grad);
    if (sink.needs(1)) addSliceGrad(sink, src.shape, gatherUnrecorded(grad, at, index));
  });
  return out;
}
