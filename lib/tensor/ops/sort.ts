// Elements in order: sort, argsort and the largest k, stable and the same on every device.

import { isFloating } from '../../runtime/dtype.js';
import * as kernels from '../../runtime/kernels.generated.js';
import { namesOf, readOptions } from '../../runtime/options.js';
import { requireInteger } from '../../runtime/require-number.js';
import { required } from '../../runtime/required.js';
import { describe } from '../../runtime/view.js';
import { record } from '../tape.js';
import { Tensor } from '../tensor.js';
import { normalizeDim, requireTensor, shapeError } from './shapes.js';
import { transpose } from './views.js';

/** Options of sort() and argsort(). */
export interface SortOptions {
  /** The dim along which elements are ordered. Default: -1. */
  dim?: number;
  /** Whether the greatest element is first. Default: false. */
  descending?: boolean;
  /** Accepted for compatibility: sorting is always stable. */
  stable?: boolean;
}

/** Options of topk(). */
export interface TopkOptions {
  /** The dim along which elements are chosen. Default: -1. */
  dim?: number;
  /** Whether to select the largest elements, not the smallest. Default: true. */
  largest?: boolean;
  /** False permits any order; the result is sorted in any case. Default: true. */
  sorted?: boolean;
}

/** Result of sort() and topk(). */
export interface Sorted {
  /** The sorted values. */
  values: Tensor;
  /** The indices of the values along the dim, i64. */
  indices: Tensor;
}

/** Returns the first `count` elements of the last dim in sorted order; differentiable. */
function selectFirst(x: Tensor, count: number, descending: boolean): Sorted {
  const shape = x.shape.with(-1, count);
  const values = Tensor.empty(shape, x.dtype, x.device);
  const indices = Tensor.empty(shape, 'i64', x.device);
  kernels.sort({ in: x, values, index: indices, descending });
  if (!isFloating(x.dtype)) return { values, indices };
  const dim = x.ndim - 1;
  record('sort', [x], [values], [indices], ([grad], sink) => {
    sink.write(0, (dx, accumulate) =>
      kernels.scatterAdd({ src: grad, index: indices, out: dx, dim, accumulate }),
    );
  });
  return { values, indices };
}

function selectFirstAlong(x: Tensor, at: number, count: number, descending: boolean): Sorted {
  if (at === x.ndim - 1) return selectFirst(x, count, descending);
  const { values, indices } = selectFirst(transpose(x, at, -1), count, descending);
  return { values: transpose(values, at, -1), indices: transpose(indices, at, -1) };
}

// Operations: order; methods too.

/**
 * Returns the elements of `dim` in ascending order, or `descending`, and their indices (i64):
 * sort(x), sort(x, 0), sort(x, { dim: 0, descending: true }). Any dtype. Equal elements keep their
 * order, and NaN is the greatest. The values are differentiable. Throws DS_SHAPE if the sizes do
 * not fit, DS_ARGUMENT unless `x` is a tensor.
 */
export function sort(x: Tensor, options: SortOptions | number = {}): Sorted {
  requireTensor('sort', x);
  const given = typeof options === 'number' ? { dim: options } : options;
  const { dim = -1, descending = false } = readOptions<SortOptions>(
    'sort',
    given,
    namesOf.SortOptions,
  );
  const at = normalizeDim('sort', dim, x.ndim);
  return selectFirstAlong(x, at, required(x.shape[at]), descending);
}

/** Returns the indices that sort the elements of `dim`, i64; see sort(). */
export function argsort(x: Tensor, options: SortOptions | number = {}): Tensor {
  requireTensor('argsort', x);
  const given = typeof options === 'number' ? { dim: options } : options;
  const { dim = -1, descending = false } = readOptions<SortOptions>(
    'argsort',
    given,
    namesOf.SortOptions,
  );
  const at = normalizeDim('argsort', dim, x.ndim);
  const lines = at === x.ndim - 1 ? x : transpose(x, at, -1);
  const index = Tensor.empty(lines.shape, 'i64', x.device);
  kernels.sort({ in: lines, values: null, index, descending });
  return lines === x ? index : transpose(index, at, -1);
}

/**
 * Returns the `k` largest elements of `dim`, largest first, and their indices (i64); with `largest:
 * false` the smallest, smallest first. Of equal elements, it selects the first; NaN is the
 * greatest. The values are differentiable. Throws DS_SHAPE if the sizes do not fit, DS_ARGUMENT
 * unless `k` is an integer from 0. As torch.topk.
 */
export function topk(x: Tensor, k: number, options: TopkOptions | number = {}): Sorted {
  requireTensor('topk', x);
  requireInteger('topk k', k, 0);
  const given = typeof options === 'number' ? { dim: options } : options;
  const { dim = -1, largest = true } = readOptions<TopkOptions>('topk', given, namesOf.TopkOptions);
  const at = normalizeDim('topk', dim, x.ndim);
  if (k > required(x.shape[at])) {
    throw shapeError('topk', `k of at most the size of dim ${at} of ${describe(x)}`, String(k));
  }
  return selectFirstAlong(x, at, k, largest);
}
