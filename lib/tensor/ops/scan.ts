// Running sums and products along one dim.
import { isFloating } from '../../runtime/dtype.js';
import type { ScanOp } from '../../runtime/kernels.generated.js';
import * as kernels from '../../runtime/kernels.generated.js';
import { record } from '../tape.js';
import { Tensor } from '../tensor.js';
import { cast } from './creation.js';
import { normalizeDim, requireTensor } from './shapes.js';

/** Returns running sums or products along `dim`; integers and bool as i64. Not recorded. */
function scanAlong(x: Tensor, dim: number, op: ScanOp): Tensor {
  const from = isFloating(x.dtype) ? x : cast(x, 'i64');
  const out = Tensor.emptyLike(from);
  kernels.scan({ in: from, out, dim, op, reverse: false, accumulate: false });
  if (from !== x) from.dispose();
  return out;
}

// Operations: along a dim; methods too.

/**
 * Returns the sums of elements 0 to i along `dim`, in x's shape; f32 accumulation, the input's
 * dtype; i64 for integers and bool, as torch.cumsum. Throws DS_SHAPE if the sizes do not fit.
 */
export function cumsum(x: Tensor, dim: number): Tensor {
  requireTensor('cumsum', x);
  const at = normalizeDim('cumsum', dim, x.ndim);
  const out = scanAlong(x, at, 'sum');
  record('cumsum', [x], [out], [], ([grad], sink) => {
    sink.write(0, (dx, accumulate) =>
      kernels.scan({ in: grad, out: dx, dim: at, op: 'sum', reverse: true, accumulate }),
    );
  });
  return out;
}

/**
 * Returns the products of elements 0 to i along `dim`, in x's shape; dtypes as cumsum. The gradient
 * is exact if elements are 0. Throws DS_SHAPE if the sizes do not fit.
 */
export function cumprod(x: Tensor, dim: number): Tensor {
  requireTensor('cumprod', x);
  const at = normalizeDim('cumprod', dim, x.ndim);
  const out = scanAlong(x, at, 'prod');
  record('cumprod', [x], [out], [x], ([grad], sink) => {
    sink.write(0, (dx, accumulate) =>
      kernels.cumprodBackward({ in: x, dout: grad, dx, dim: at, accumulate }),
    );
  });
  return out;
}
