// Losses of rows if classes are split over ranks (vocabulary parallelism).
// Source: Shoeybi et al. 2019 (Megatron-LM).

import * as kernels from '../../runtime/kernels.generated.js';
import { required } from '../../runtime/required.js';
import type { View } from '../../runtime/view.js';
import { scope } from '../scope.js';
import { noGrad } from '../tape.js';
import { Tensor } from '../tensor.js';
import { clone } from './arrange.js';
import { cast } from './creation.js';
import { add, eq, ge, gt, lt, ne, sub, where } from './elementwise.js';
import { gather } from './indexing.js';
import { logicalAnd } from './logic.js';
import { max } from './reduce.js';
import { exp, log } from './unary.js';
import { split, squeeze, stack, unsqueeze } from './views.js';

/** The classes of this rank, and the reduction over the ranks with the other classes. */
export interface ClassShare {
  /** Index of this rank's first class. */
  readonly first: number;
  /** Number of classes on all ranks. */
  readonly classes: number;
  /** Reduces a contiguous f32 or f64 tensor over the ranks, in place. */
  combine(values: View, op: 'sum' | 'max'): void;
}

/** Statistics of rows over this rank's classes, from the kernel. */
interface SharedRows {
  /** [N, classes here]. */
  logits: View;
  /** [N]. */
  target: View;
  losses: View;
  lse: View;
  /** Null without a report. */
  correct: View | null;
}

/**
 * Replaces log-sum-exps, losses and correct flags over this rank's classes by those over all
 * classes, in place. First exchange: the largest log-sum-exp, which is subtracted. Second: the sum
 * of the ranks' exponentials. Rows that do not count stay 0. With a report, a third exchange finds
 * whether a class of another rank beats the target.
 */
export function reduceRows(rows: SharedRows, share: ClassShare, ignoreIndex: number): void {
  noGrad(() =>
    scope(() => {
      const [lse, losses, target] = [rows.lse, rows.losses, rows.target].map(tensorOf) as [
        Tensor,
        Tensor,
        Tensor,
      ];
      const counts = ne(target, ignoreIndex);
      const largest = clone(lse);
      share.combine(largest, 'max');
      const mass = exp(sub(lse, largest));
      const targetLogits = sub(lse, losses);
      const checked = rows.correct ? [localTargetLogits(rows, share)] : [];
      const sums = stack([mass, targetLogits, ...checked]);
      share.combine(sums, 'sum');
      const [total, picked, logit] = split(sums, 1).map((tensor) => squeeze(tensor, 0)) as [
        Tensor,
        Tensor,
        Tensor?,
      ];
      const totalLse = add(largest, log(total));
      kernels.copy({ in: where(counts, totalLse, 0), out: rows.lse });
      kernels.copy({ in: where(counts, sub(totalLse, picked), 0), out: rows.losses });
      if (rows.correct && logit)
        reduceCorrect(rows.correct, { rows, share, logit, totalLse, counts });
    }),
  );
}

/** Returns a view as a tensor of the current scope. */
function tensorOf({ buffer, dtype, shape, strides, offset }: View): Tensor {
  return new Tensor(buffer.retain(), dtype, shape, strides, offset);
}

/** Returns which rows have their target among this rank's classes. */
function isHere({ target, logits }: SharedRows, { first }: ClassShare): Tensor {
  const class_ = tensorOf(target);
  return logicalAnd(ge(class_, first), lt(class_, first + required(logits.shape[1])));
}

/** Returns the logit of each row's target in the losses' dtype; 0 if another rank has it. */
function localTargetLogits(rows: SharedRows, share: ClassShare): Tensor {
  const here = isHere(rows, share);
  const column = where(here, sub(tensorOf(rows.target), share.first), 0);
  const ownTensor = squeeze(gather(tensorOf(rows.logits), -1, unsqueeze(column, -1)), -1);
  return where(here, cast(ownTensor, rows.losses.dtype), 0);
}

interface TargetComparison {
  rows: SharedRows;
  share: ClassShare;
  /** Logit of each row's target, from any rank. */
  logit: Tensor;
  /** The log-sum-exps over all classes. */
  totalLse: Tensor;
  /** Whether each row counts. */
  counts: Tensor;
}

/**
 * Sets 1 if no rank has a class that beats the target: a larger logit, or an equal one at a lower
 * index.
 */
function reduceCorrect(
  correct: View,
  { rows, share, logit, totalLse, counts }: TargetComparison,
): void {
  const largest = cast(max(tensorOf(rows.logits), { dim: -1 }), logit.dtype);
  const isBehind = lt(tensorOf(rows.target), share.first);
  const beatenElsewhere = where(isBehind, gt(largest, logit), ge(largest, logit));
  const beatenHere = eq(tensorOf(correct), 0);
  const beaten = where(isHere(rows, share), beatenHere, beatenElsewhere);
  const count = cast(beaten, logit.dtype);
  share.combine(count, 'sum');
  const isFirst = logicalAnd(logicalAnd(eq(count, 0), eq(totalLse, totalLse)), counts);
  kernels.copy({ in: isFirst, out: correct });
}
