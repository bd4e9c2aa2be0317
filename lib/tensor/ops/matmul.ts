// Matrix products: 2-D, batched, broadcast batches; transposed operands are read in place.

import * as kernels from '../../runtime/kernels.generated.js';
import { leading, required } from '../../runtime/required.js';
import { describe, numel, type View } from '../../runtime/view.js';
import { refuseBatchInvariant } from '../batch-invariant.js';
import { record } from '../tape.js';
import { Tensor } from '../tensor.js';
import {
  asRows,
  broadcastShape,
  requireSameType,
  shapeError,
  toRowMajor,
  viewOf,
} from './shapes.js';
import { contiguous, expand, reshape, squeeze, unsqueeze } from './views.js';

/** A matrix (or batch of them) as the GEMM reads it: `view`, transposed if `flip` is true. */
interface GemmOperand {
  view: View;
  flip: boolean;
}

/** Reads `x` [.., M, K] in place if one of its last two dims has stride 1, else from a copy. */
function gemmOperand(x: Tensor): GemmOperand {
  const n = x.ndim;
  const [rows, columns] = [required(x.shape[n - 2]), required(x.shape[n - 1])];
  const [rowStride, columnStride] = [required(x.strides[n - 2]), required(x.strides[n - 1])];
  if (isReadable(rows, columns, rowStride, columnStride)) {
    return { view: strided(x, Math.max(rowStride, columns, 1)), flip: false };
  }
  if (isReadable(columns, rows, columnStride, rowStride)) {
    const shape = [...x.shape.slice(0, -2), columns, rows];
    const strides = [...x.strides.slice(0, -2), Math.max(columnStride, rows, 1), 1];
    return { view: viewOf(x, shape, strides), flip: true };
  }
  return { view: toRowMajor(x), flip: false };
}

function isReadable(
  rows: number,
  columns: number,
  rowStride: number,
  columnStride: number,
): boolean {
  return (columnStride === 1 || columns === 1) && (rows === 1 || rowStride >= columns);
}

function strided(x: Tensor, rowStride: number): View {
  const n = x.ndim;
  if (x.strides[n - 1] === 1 && x.strides[n - 2] === rowStride) return x;
  return viewOf(x, x.shape, [...x.strides.slice(0, -2), rowStride, 1]);
}

/**
 * Computes out (+)= a b for operands of the same rank. Ops of every layer write their arguments
 * out in one order, without spreads: spreads cost the host more than the call.
 */
export function gemm(a: GemmOperand, b: GemmOperand, out: View, accumulate: boolean): void {
  kernels.matmul({
    a: a.view,
    b: b.view,
    bias: null,
    aux: null,
    out,
    transA: a.flip,
    transB: b.flip,
    epilogue: 'none',
    accumulate,
  });
}

export const plainOperand = (view: View): GemmOperand => ({ view, flip: false });
export const transposeOperand = ({ view, flip }: GemmOperand): GemmOperand => ({
  view,
  flip: !flip,
});

/** Returns [M, K] x [K, N] or [batch, M, K] x [batch, K, N]. */
function multiplyMatrices(a: Tensor, b: Tensor): Tensor {
  refuseBatchInvariant('matmul', 'linear layers and attention', 'another product');
  const shape = [...a.shape.slice(0, -1), required(b.shape[b.ndim - 1])];
  const out = Tensor.empty(shape, a.dtype, a.device);
  gemm(gemmOperand(a), gemmOperand(b), out, false);
  record('matmul', [a, b], [out], [a, b], ([grad], sink) => {
    const dout = gemmOperand(grad);
    sink.write(0, (da, accumulate) => gemm(dout, transposeOperand(gemmOperand(b)), da, accumulate));
    sink.write(1, (db, accumulate) => gemm(transposeOperand(gemmOperand(a)), dout, db, accumulate));
  });
  return out;
}

/** Merges all leading dims: [.., M, K] to [batch, M, K]. */
function batchTensor(x: Tensor): Tensor {
  return x.ndim === 3 ? x : reshape(x, [numel(x.shape.slice(0, -2)), ...x.shape.slice(-2)]);
}

// Operations: products; methods too.

/**
 * Returns the matrix product over the last two dims; leading dims broadcast as in NumPy. [.., M, K]
 * x [.., K, N]. One-dim operands are a row on the left and a column on the right. f32 accumulation,
 * one rounding to the operands' dtype. Throws DS_SHAPE, DS_DTYPE or DS_DEVICE if the tensors do not
 * fit together.
 */
export function matmul(a: Tensor, b: Tensor): Tensor {
  requireSameType('matmul', a, b);
  if (a.ndim === 1) return squeeze(matmul(unsqueeze(a, 0), b), b.ndim === 1 ? 0 : -2);
  if (b.ndim === 1) return squeeze(matmul(a, unsqueeze(b, 1)), -1);
  if (a.ndim < 2 || b.ndim < 2 || a.shape[a.ndim - 1] !== b.shape[b.ndim - 2]) {
    throw shapeError('matmul', '[.., M, K] and [.., K, N]', `${describe(a)} and ${describe(b)}`);
  }
  if (b.ndim === 2) {
    if (a.ndim === 2) return multiplyMatrices(a, b);
    const lead = a.shape.slice(0, -1);
    const rows = reshape(a, [numel(lead), a.size(-1)]);
    return reshape(multiplyMatrices(rows, b), [...lead, b.size(-1)]);
  }
  const batch = broadcastShape('matmul', a.shape.slice(0, -2), b.shape.slice(0, -2));
  const left = batchTensor(expand(a, [...batch, ...a.shape.slice(-2)]));
  const right = batchTensor(expand(b, [...batch, ...b.shape.slice(-2)]));
  const out = multiplyMatrices(contiguousBatch(left), contiguousBatch(right));
  return batch.length === 1 ? out : reshape(out, [...batch, a.size(-2), b.size(-1)]);
}

/** Returns x, or a copy of a repeated batch (stride 0): not every GEMM reads one. */
function contiguousBatch(x: Tensor): Tensor {
  return x.strides[0] === 0 && x.shape[0] !== 1 ? contiguous(x) : x;
}

// Operations: none.

/** Returns x's rows as a GEMM operand [N, C]; copies only if no row stride describes them. */
export function gemmRows(x: Tensor): View {
  return x.ndim === 2 ? strideRows(x) : asRows(toRowMajor(x));
}

function strideRows(x: Tensor): View {
  const [rows, columns] = leading(x.shape, 2);
  const [rowStride, columnStride] = leading(x.strides, 2);
  if (!isReadable(rows, columns, rowStride, columnStride)) return toRowMajor(x);
  return strided(x, Math.max(rowStride, columns, 1));
}
