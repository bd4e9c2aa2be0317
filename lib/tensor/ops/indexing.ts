// Lookups by index tensors: embedding rows, and gather along a dim.
import { DsError } from '../../errors.js';
import * as kernels from '../../runtime/kernels.generated.js';
import { describe, isContiguous, numel } from '../../runtime/view.js';
import { record } from '../autograd.js';
import { Tensor } from '../tensor.js';
import {
  normalizeDim,
  notTensor,
  packed,
  requireSameDevice,
  requireTensor,
  shapeError,
  viewOf,
} from './shapes.js';
import { contiguous } from './views.js';

const INDEX_HINT =
  "Labels and token ids are integers: Tensor.from(ids, { dtype: 'i64' }) or .to('i64'); in samples, Int32Array.";

/**
 * Throws DS_DTYPE unless `index` is i32 or i64, and DS_DEVICE when it is elsewhere than `values`.
 */
export function requireIndex(op: string, values: Tensor, index: Tensor): void {
  requireTensor(op, values);
  if (!(index instanceof Tensor))
    throw notTensor(op, 'an index tensor of i32 or i64', index, INDEX_HINT);
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

/**
 * Rows of `weight` [V, C] at `index` [..] (i32 or i64): [.., C]. Throws DS_INDEX on the CPU for an
 * index outside [0, V); on a GPU such rows are NaN.
 */
export function embedding(weight: Tensor, index: Tensor): Tensor {
  requireIndex('embedding', weight, index);
  if (weight.ndim !== 2) throw shapeError('embedding', 'a weight [V, C]', describe(weight));
  if (!isContiguous(weight)) return embedding(contiguous(weight), index);
  const rows = numel(index.shape);
  const columns = weight.shape[1] as number;
  const flat = packed(index);
  const at = viewOf(flat, [rows]);
  const out = Tensor.empty([...index.shape, columns], weight.dtype, weight.device);
  kernels.embedding({ weight, index: at, out: viewOf(out, [rows, columns]) });
  record('embedding', [weight], [out], [flat], ([grad], sink) => {
    const dout = viewOf(packed(grad as Tensor), [rows, columns]);
    sink.write(0, (dweight, accumulate) =>
      kernels.embeddingBackward({ dout, index: at, dweight, accumulate }),
    );
  });
  return out;
}

/**
 * out[.., j, ..] = x[.., index[.., j, ..], ..] along `dim`, as torch.gather; `index` has x's sizes
 * apart from `dim`. Throws DS_SHAPE, DS_INDEX (CPU).
 */
export function gather(x: Tensor, dim: number, index: Tensor): Tensor {
  requireIndex('gather', x, index);
  const at = normalizeDim('gather', dim, x.ndim);
  if (index.ndim !== x.ndim || index.shape.some((n, d) => d !== at && n !== x.shape[d])) {
    throw shapeError(
      'gather',
      `an index like ${describe(x)} apart from dim ${at}`,
      describe(index),
    );
  }
  const out = Tensor.empty(index.shape, x.dtype, x.device);
  kernels.gather({ in: x, index, out, dim: at });
  record('gather', [x], [out], [index], ([grad], sink) => {
    const dout = packed(grad as Tensor);
    sink.write(0, (dx, accumulate) =>
      kernels.gatherBackward({ dout, index, dx, dim: at, accumulate }),
    );
  });
  return out;
}
