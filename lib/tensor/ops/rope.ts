// Rotary position embedding, and the positions of tokens in packed documents.

import { DsError } from '../../errors.js';
import { leading } from '../../runtime/required.js';
import { describe } from '../../runtime/view.js';
import { computeProjection } from '../kept-results.js';
import { scope } from '../scope.js';
import { record } from '../tape.js';
import { Tensor } from '../tensor.js';
import { arange, full, zeros } from './creation.js';
import { ne, sub, where } from './elementwise.js';
import { gather } from './indexing.js';
import { ropePositions, rotateHeads } from './rotate-heads.js';
import { cumsum } from './scan.js';
import { scatterAdd } from './scatter.js';
import {
  overwriteOrAdd,
  requireSameDevice,
  requireTensor,
  shapeError,
  toPackedRows,
} from './shapes.js';
import { concat } from './views.js';

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
