// Rotary position embedding, and the positions of tokens in packed documents.

import { DsError } from '../../errors.js';
import * as kernels from '../../runtime/kernels.generated.js';
import { leading } from '../../runtime/required.js';
import { describe, type View } from '../../runtime/view.js';
import { computeProjection } from '../kept-results.js';
import { scope } from '../scope.js';
import { record } from '../tape.js';
import { Tensor } from '../tensor.js';
import { arange, cast, full, zeros } from './creation.js';
import { ne, sub, where } from './elementwise.js';
import { gather } from './indexing.js';
import { cumsum } from './scan.js';
import { scatterAdd } from './scatter.js';
import {
  overwriteOrAdd,
  requireSameDevice,
  requireTensor,
  shapeError,
  toPackedRows,
  toRowMajor,
  viewOf,
} from './shapes.js';
import { concat } from './views.js';

/** Returns positions as contiguous [B, T] i32. Throws DS_SHAPE, DS_DTYPE, DS_DEVICE. */
export function ropePositions(positions: Tensor, x: Tensor): Tensor {
  const op = 'rope positions';
  requireSameDevice(op, positions, x);
  if (positions.dtype !== 'i32' && positions.dtype !== 'i64') {
    const expected = 'rows of the table of dtype i32 or i64';
    throw new DsError({ code: 'DS_DTYPE', op, expected, got: describe(positions) });
  }
  const [B, T] = x.shape;
  if (positions.ndim !== 2 || positions.size(0) !== B || positions.size(1) !== T)
    throw shapeError(op, `[${B}, ${T}]`, describe(positions));
  return toRowMajor(cast(positions, 'i32'));
}

/** Angles and positions of a rotation. */
export interface Rotation {
  /** Cosines by row of the table. */
  cos: Tensor;
  /** Sines by row of the table. */
  sin: Tensor;
  /** The row of each token, or null: row t for token t. */
  positions: Tensor | null;
  /** Whether to rotate backwards. */
  inverse: boolean;
}

/** Returns `count` channels of each head from `start` on, as a view. */
function channelsOf(x: View, start: number, count: number): View {
  const shape = x.shape.slice();
  shape[shape.length - 1] = count;
  return viewOf(x, shape, x.strides, x.offset + start);
}

/**
 * Rotates the first channels of heads [B, T, H, D] into `out`, and copies the channels without an
 * angle.
 */
export function rotateHeads(heads: View, out: View, rotation: Rotation): void {
  const { cos, sin, positions, inverse } = rotation;
  const [width, rotated] = [heads.shape.at(-1) ?? 0, 2 * (cos.shape.at(-1) ?? 0)];
  if (rotated === 0 || rotated >= width) {
    kernels.rope({ in: heads, cos, sin, out, positions, inverse });
    return;
  }
  const [from, to] = [channelsOf(heads, 0, rotated), channelsOf(out, 0, rotated)];
  kernels.rope({ in: from, cos, sin, out: to, positions, inverse });
  const unrotated = width - rotated;
  kernels.copy({
    in: channelsOf(heads, rotated, unrotated),
    out: channelsOf(out, rotated, unrotated),
  });
}

/**
 * Applies rotary position embedding in the rotate-half form. x [B, T, H, D]. Token t uses the
 * angles of row t of cos and sin [T, R / 2] in f32 (f64 for f64). With `positions` [B, T] i32 or
 * i64 it uses row positions[b, t] of a table of any length. R is at most D: the first R channels of
 * each head are rotated, the others are unchanged. A position outside the table throws DS_INDEX on
 * the CPU and gives NaN on a GPU, because the host does not wait. Throws DS_SHAPE, DS_DTYPE or
 * DS_DEVICE if the tensors do not fit together. Source: Su et al. 2021.
 */
export function rope(x: Tensor, cos: Tensor, sin: Tensor, positions: Tensor | null = null): Tensor {
  requireSameDevice('rope', x, cos);
  requireSameDevice('rope', x, sin);
  const rows = positions && ropePositions(positions, x);
  const source = toPackedRows(x);
  const out = computeProjection('rope', x, {
    allocate: () => Tensor.emptyLike(x),
    compute: (to) => rotateHeads(source, to, { cos, sin, positions: rows, inverse: false }),
  });
  const saved = rows ? [cos, sin, rows] : [cos, sin];
  record('rope', [x], [out], saved, ([grad], sink) => {
    const dout = toPackedRows(grad);
    sink.write(0, (dx, accumulate) =>
      overwriteOrAdd(dx, accumulate, (to) =>
        rotateHeads(dout, to, { cos, sin, positions: rows, inverse: true }),
      ),
    );
  });
  return out;
}

/**
 * Returns the positions of tokens in their own documents, from 0: [B, T] i32 for documents [B, T]
 * i32 or i64. A document begins where the number differs from the previous one. For rope() and
 * tables of positions. Throws DS_SHAPE or DS_DTYPE if the tensors do not fit together.
 */
export function documentPositions(documents: Tensor): Tensor {
  const op = 'documentPositions';
  requireTensor(op, documents);
  if (documents.dtype !== 'i32' && documents.dtype !== 'i64') {
    const expected = 'numbers of documents of dtype i32 or i64';
    throw new DsError({ code: 'DS_DTYPE', op, expected, got: describe(documents) });
  }
  if (documents.ndim !== 2) throw shapeError(op, '[B, T]', describe(documents));
  const [B, T] = leading(documents.shape, 2);
  return scope(() => {
    const { device } = documents;
    const positions = arange(T, { dtype: 'i32', device }).reshape([1, T]);
    if (T < 2) return positions.expand([B, T]).clone();
    const differs = ne(documents.narrow(1, 1, T - 1), documents.narrow(1, 0, T - 1));
    const begins = concat([full([B, 1], 0, { dtype: 'bool', device }), differs], 1);
    // Documents are counted along the row. Only the first token of each contributes its position.
    const counted = cumsum(begins, 1);
    const starts = where(begins, positions, 0).to('i64');
    const startOfDocument = scatterAdd(zeros([B, T], { dtype: 'i64', device }), 1, counted, starts);
    return sub(positions, gather(startOfDocument, 1, counted).to('i32'));
  });
}
