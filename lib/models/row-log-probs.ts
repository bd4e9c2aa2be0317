// Computes log-probabilities of whole rows, for losses that compare answers.
import { argumentError } from '../runtime/input-errors.js';
import { concat, type LossReport, scope, type Tensor } from '../tensor/index.js';

/** Returns the summed loss of hidden states [1, T, channels] and targets [1, T]. */
type SumLogProbs = (x: Tensor, targets: Tensor, more: { report?: LossReport }) => Tensor;

/**
 * Returns the sums of the log-probabilities of targets [R, T] by row, [R] f32; ignored targets do
 * not count. Row i of the targets belongs to hidden states `rows[i]` of x [B, T, channels]. The
 * head runs once per row, so that its gradient is the same for all tokens of a row.
 */
export function rowLogProbs(
  x: Tensor,
  targets: Tensor,
  { rows, reports = [] }: { rows: readonly number[]; reports?: readonly LossReport[] | undefined },
  sumOf: SumLogProbs,
): Tensor {
  return scope(() => {
    const sums = rows.map((row, i) => {
      const hidden = x.narrow(0, row, 1).contiguous();
      const report = reports[i];
      const more = report ? { report } : {};
      return sumOf(hidden, targets.narrow(0, i, 1).contiguous(), more).reshape([1]);
    });
    return concat(sums, 0).neg();
  });
}

/**
 * Returns the row of tokens [B, T] for each row of targets [R, T]: `given`, or each row once.
 * Throws DS_ARGUMENT with the place `op` for a list that does not fit.
 */
export function readRows(
  op: string,
  given: boolean | readonly number[] | undefined,
  [targets, tokens]: readonly [Tensor, Tensor],
): readonly number[] {
  const each = Array.from({ length: tokens.size(0) }, (_, row) => row);
  const rows = typeof given === 'object' ? given : each;
  if (targets.size(0) === rows.length && rows.every((row) => each[row] !== undefined)) return rows;
  const expected = `targets of ${rows.length} rows, each of [0, ${each.length})`;
  throw argumentError(op, expected, `${targets.size(0)}: ${rows.join(', ')}`);
}
