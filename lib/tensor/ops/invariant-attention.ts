// Causal attention by the paged kernel in its batch-invariant form, which inference uses too. Each
// row of the batch is a sequence with one block of keys and values.
import * as kernels from '../../runtime/kernels.generated.js';
import { leading } from '../../runtime/required.js';
import type { View } from '../../runtime/view.js';
import { scope } from '../scope.js';
import { noGrad } from '../tape.js';
import { Tensor } from '../tensor.js';
import { arange, full } from './creation.js';
import { viewOf } from './shapes.js';

/** Operands of a causal attention of whole rows. */
interface WholeRows {
  /** [B, H, T, D]. */
  q: View;
  /** [B, Hk, T, D]. */
  k: View;
  v: View;
  /** Receives the result [B, H, T, D], in contiguous memory [B, T, H, D]. */
  out: View;
  /** Receives the log-sum-exps, [B, H, T] contiguous. */
  lse: View;
  scale: number;
  /** Bound of the scores; 0: none. */
  cap: number;
  /** 0: none. */
  window: number;
}

/** Writes `out` and `lse`; the bits of a query depend on its row up to its position only. */
export function attendInvariantly(rows: WholeRows): void {
  const { q, k, v, out, lse, scale, cap, window } = rows;
  const [B, H, T, D] = leading(q.shape, 4);
  const [, Hk] = leading(k.shape, 2);
  const { device } = out.buffer;
  noGrad(() =>
    scope(() => {
      const pool = Tensor.empty([B, 2, Hk, T, D], out.dtype, device);
      const half = Hk * T * D;
      const half0 = [2 * half, T * D, D, 1];
      kernels.copy({ in: k, out: viewOf(pool, [B, Hk, T, D], half0) });
      kernels.copy({ in: v, out: viewOf(pool, [B, Hk, T, D], half0, pool.offset + half) });
      const queries = Tensor.empty([B * T, H, D], out.dtype, device);
      const byToken = [T * H * D, D, H * D, 1];
      kernels.copy({ in: q, out: viewOf(queries, [B, H, T, D], byToken) });
      const sums = Tensor.empty([B * T, H], lse.dtype, device);
      kernels.pagedAttention({
        q: queries,
        pool,
        tables: arange(B, { dtype: 'i32', device }).reshape([B, 1]),
        starts: arange(B + 1, { step: T, dtype: 'i32', device }),
        lengths: full([B], T, { dtype: 'i32', device }),
        sinks: null,
        out: viewOf(out, [B * T, H, D], [H * D, D, 1]),
        lse: sums,
        scale,
        cap,
        window,
        longest: T,
        invariant: true,
      });
      kernels.copy({ in: viewOf(sums, [B, H, T], [T * H, 1, H]), out: lse });
    }),
  );
}
