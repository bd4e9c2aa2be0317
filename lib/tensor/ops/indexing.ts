// Lookups by index tensors: embedding rows, and gather along a dim.

import { DsError } from '../../errors.js';
import * as kernels from '../../runtime/kernels.generated.js';
import { required } from '../../runtime/required.js';
import { describe, isContiguous, numel, type View } from '../../runtime/view.js';
import { record } from '../tape.js';
import { Tensor } from '../tensor.js';
import {
  normalizeDim,
  notTensorError,
  requireSameDevice,
  requireTensor,
  sameShape,
  shapeError,
  toRowMajor,
  viewOf,
} from './shapes.js';
import { contiguous } from './views.js';

const INDEX_HINT =
  "Labels and token ids are integers: Tensor.from(ids, { dtype: 'i64' }) or .to('i64'); in samples, Int32Array.";

/**
 * Throws DS_DTYPE unless `index` is i32 or i64, and DS_DEVICE if it is not on the device of
 * `values`.
 */
export function requireIndex(op: string, values: Tensor, index: Tensor): void {
  requireTensor(op, values);
  if (!(index instanceof Tensor))
    throw notTensorError(op, 'an index tensor of i32 or i64', index, INDEX_HINT);
  if (index.dtype !== 'i32' && index.dtype !== 'i64') {
    throw new DsError({
      code: 'DS_DTYPE',
      op,
      expected: 'an index of i32 or i64',
      got: describe(index),
      hint: INDEX_HINT,
    });
  }
  requireSameDevice(op, values, index);
}

// Operations: choice.

/**
 * Returns the rows of `weight` [V, C] at `index` [..] (i32 or i64): [.., C]. Throws DS_INDEX on the
 * CPU for an index outside [0, V); on a GPU such rows are NaN.
 */
export function embedding(weight: Tensor, index: Tensor): Tensor {
  requireIndex('embedding', weight, index);
  if (weight.ndim !== 2) throw shapeError('embedding', 'a weight [V, C]', describe(weight));
  if (!isContiguous(weight)) return embedding(contiguous(weight), index);
  const rows = numel(index.shape);
  const columns = required(weight.shape[1]);
  const flat = toRowMajor(index);
  const at = viewOf(flat, [rows]);
  const out = Tensor.empty([...index.shape, columns], weight.dtype, weight.device);
  kernels.embedding({ weight, index: at, out: viewOf(out, [rows, columns]) });
  record('embedding', [weight], [out], [flat], ([grad], sink) => {
    const dout = viewOf(toRowMajor(grad), [rows, columns]);
    sink.write(0, (dweight, accumulate) =>
      kernels.embeddingBackward({ dout, index: at, dweight, accumulate }),
    );
  });
  return out;
}

// Operations: none.

/**
 * Returns the part of `whole` that `index` addresses: of the index's sizes except along `dim`.
 * Throws DS_SHAPE if the index is larger in another dim.
 */
export function sliceFor(op: string, whole: View, dim: number, index: View): View {
  const fits = (n: number, d: number) => d === dim || n <= required(whole.shape[d]);
  if (index.shape.length !== whole.shape.length || !index.shape.every(fits)) {
    const expected = `an index of at most the size of ${describe(whole)} except in dim ${dim}`;
    throw shapeError(op, expected, describe(index));
  }
  return viewOf(whole, index.shape.with(dim, required(whole.shape[dim])), whole.strides);
}

/** Sets dx (+)= the sum of `grad` at the indices of the forward. */
function scatterGrad(dx: View, dim: number, index: View, grad: View, accumulate: boolean): void {
  const slice = sliceFor('gather', dx, dim, index);
  const isWhole = sameShape(slice.shape, dx.shape);
  if (!isWhole && !accumulate) kernels.fill({ out: dx, value: 0 });
  const adds = accumulate || !isWhole;
  kernels.scatterAdd({ src: grad, index, out: slice, dim, accumulate: adds });
}

// Operations: choice; methods too.

/**
 * Returns out[.., j, ..] = x[.., index[.., j, ..], ..] along `dim`, as torch.gather. `index` (i32
 * or i64) has x's sizes or less except along `dim`, and out has index's sizes. Throws DS_SHAPE,
 * DS_INDEX (CPU).
 */
export function gather(x: Tensor, dim: number, index: Tensor): Tensor {
  requireIndex('gather', x, index);
  const at = normalizeDim('gather', dim, x.ndim);
  const slice = sliceFor('gather', x, at, index);
  const out = Tensor.empty(index.shape, x.dtype, x.device);
  kernels.gather({ in: slice, index, out, dim: at });
  record('gather', [x], [out], [index], ([grad], sink) => {
    sink.write(0, (dx, accumulate) => scatterGrad(dx, at, index, grad, accumulate));
  });
  return out;
}
