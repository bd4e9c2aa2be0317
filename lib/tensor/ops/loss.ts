// Cross-entropy of rows by fused kernels: the reduction of row losses to one number, and its
// counts.

import { DsError } from '../../errors.js';
import type { Device } from '../../runtime/device.js';
import { type DType, statisticOf } from '../../runtime/dtype.js';
import { formatValue } from '../../runtime/format-value.js';
import * as kernels from '../../runtime/kernels.generated.js';
import { requireFinite, requireInteger } from '../../runtime/require-number.js';
import { required } from '../../runtime/required.js';
import { describe, numel, type View } from '../../runtime/view.js';
import { isRecomputing, record } from '../tape.js';
import { Tensor } from '../tensor.js';
import { requireIndex } from './indexing.js';
import { type LossReport, type RowSums, requireReport, TokenReport } from './loss-report.js';
import { type LossReduction, reductionOf } from './pointwise-losses.js';
import {
  constant,
  expandView,
  overwriteOrAdd,
  rowCount,
  shapeError,
  toRowMajor,
  viewOf,
} from './shapes.js';

/** PyTorch's default. */
const IGNORE_INDEX = -100;

/** Rows that a loss over classes ignores. */
export interface RowOptions {
  /**
   * Rows with this target count neither in the sum nor in the mean. The mean is 0 without other
   * rows. Default: -100.
   */
  ignoreIndex?: number;
}

/** Reduction of row losses to one number, and counting. */
export interface RowLossOptions extends RowOptions {
  /**
   * Fraction of the target that all classes share equally, in [0, 1]. Default: 0. Source: Szegedy
   * et al. 2016.
   */
  labelSmoothing?: number;
  /**
   * How the losses of elements become the result. Default: "mean" over the rows that count: 0
   * without such rows.
   */
  reduction?: LossReduction;
  /**
   * Divisor of the sum of the rows' losses, instead of the number of rows that count: a number
   * above 0, or one element on the loss's device, where 0 counts as 1. It gets no gradient. Not
   * with "sum" or "none".
   */
  divisor?: number | Tensor;
  /** Receives, on the device, how many rows counted and how many targets had the largest logit. */
  report?: LossReport;
}

/** RowLossOptions, complete. */
export interface RowRules {
  readonly ignoreIndex: number;
  readonly smoothing: number;
  readonly reduction: LossReduction;
  /** Null: the number of rows that count for a mean, no divisor for a sum. */
  readonly divisor: number | Tensor | null;
  readonly report: LossReport | null;
}

/** Returns the options with their defaults. Throws DS_ARGUMENT, DS_SHAPE, DS_DEVICE. */
export function rowRulesOf(op: string, options: RowLossOptions, device: Device): RowRules {
  const given = options.labelSmoothing ?? 0;
  const smoothing = given === 1 ? 1 : requireFinite(`${op} labelSmoothing`, given, 0, 1);
  const reduction = reductionOf(op, options.reduction);
  const divisor = options.divisor ?? null;
  if (divisor !== null) requireDivisor(op, divisor, reduction, device);
  const report = options.report ? requireReport(op, options.report, device) : null;
  return { ignoreIndex: ignoreIndexOf(op, options), smoothing, reduction, divisor, report };
}

function requireDivisor(op: string, divisor: unknown, reduction: string, device: Device): void {
  const divisorError = (expected: string, got: string, hint?: string): DsError =>
    new DsError({ code: 'DS_ARGUMENT', op: `${op} divisor`, expected, got, ...(hint && { hint }) });
  if (reduction !== 'mean') {
    throw divisorError(
      'a divisor or a reduction',
      `both, "${reduction}" and ${formatValue(divisor)}`,
    );
  }
  if (typeof divisor === 'number') {
    if (divisor > 0 && Number.isFinite(divisor)) return;
    throw divisorError(
      'a finite number above 0',
      formatValue(divisor),
      'Count the targets of the update.',
    );
  }
  if (!(divisor instanceof Tensor))
    throw divisorError('a number or a tensor', formatValue(divisor));
  if (divisor.numel !== 1) throw shapeError(`${op} divisor`, 'one element', describe(divisor));
  if (divisor.requiresGrad)
    throw divisorError('a tensor that requires no gradient', describe(divisor));
  if (divisor.device !== device) {
    throw new DsError({
      code: 'DS_DEVICE',
      op: `${op} divisor`,
      expected: `a tensor on the loss's device, ${device.name}`,
      got: `${describe(divisor)} on ${divisor.device.name}`,
      hint: `Move it: .to('${device.name}'); or pass a number.`,
    });
  }
}

/** Returns the ignored target. Throws DS_ARGUMENT unless it is an integer. */
function ignoreIndexOf(op: string, { ignoreIndex = IGNORE_INDEX }: RowOptions): number {
  return requireInteger(`${op} ignoreIndex`, ignoreIndex, Number.MIN_SAFE_INTEGER);
}

/** The counter of countEmptyMeans(). */
let emptyMeans: Tensor | null = null;

/**
 * Makes each later cross-entropy on the device of `into`, [1] f32, add 1 to `into` if no row
 * counts. Null ends the counting. Returns the previous counter.
 */
export function countEmptyMeans(into: Tensor | null): Tensor | null {
  const before = emptyMeans;
  emptyMeans = into;
  return before;
}

/** Kernel arguments for logits of all classes. */
export const allClasses = { first: 0, classes: 0 } as const;

/** Rows that a kernel has measured. */
interface MeasuredRows {
  readonly target: View;
  /** [rows] f32 (f64 for f64). */
  readonly losses: Tensor;
  /** [rows] i64, if `rules.report` is set. */
  readonly correct: Tensor | null;
}

/** Allocates the correct flags, [rows] i64; null without a report and in a recomputation. */
export function allocateCorrect(rules: RowRules, rows: number, device: Device): Tensor | null {
  return rules.report && !isRecomputing() ? Tensor.empty([rows], 'i64', device) : null;
}

/** Allocates the sums of a TokenReport for counted rows; null for other reports. */
export function allocateSums(
  { report }: RowRules,
  correct: Tensor | null,
  lse: Tensor,
): RowSums | null {
  if (!(report instanceof TokenReport && correct)) return null;
  return { expected: Tensor.emptyLike(lse), total: Tensor.emptyLike(lse) };
}

/** Adds the sums of rows to the report. */
export function reportSums(
  { report }: RowRules,
  { lse, sums, classes }: { lse: Tensor; sums: RowSums | null; classes: number },
): void {
  if (sums && report instanceof TokenReport) report.addSums(lse, sums, classes);
}

/**
 * Returns the divisor of the sum of the losses, [1] of their dtype. For a mean it is the number of
 * rows that count, or 1 without such rows. Updates the report.
 */
export function divisorOf(rules: RowRules, { target, losses, correct }: MeasuredRows): Tensor {
  const { reduction, divisor, report, ignoreIndex } = rules;
  const { dtype, device } = losses;
  const isMean = divisor === null && reduction === 'mean';
  const count = isMean || correct ? countRows(target, ignoreIndex, dtype) : null;
  if (report && count && correct) report.add(count, correct);
  if (count && isMean) return replaceZero(count);
  const out = Tensor.empty([1], dtype, device);
  if (divisor instanceof Tensor) {
    kernels.copy({ in: viewOf(divisor, [1]), out });
    return replaceZero(out);
  }
  kernels.fill({ out, value: divisor ?? 1 });
  return out;
}

/** Returns divisorOf() before the losses are known: no report, no counter of empty means. */
export function earlyDivisor(
  { reduction, divisor, ignoreIndex }: RowRules,
  { target, losses }: Pick<MeasuredRows, 'target' | 'losses'>,
): Tensor {
  const { dtype, device } = losses;
  let out: Tensor;
  if (divisor === null && reduction === 'mean') out = countRows(target, ignoreIndex, dtype);
  else {
    out = Tensor.empty([1], dtype, device);
    if (divisor instanceof Tensor) kernels.copy({ in: viewOf(divisor, [1]), out });
    else kernels.fill({ out, value: divisor ?? 1 });
  }
  incrementIf(out, isZero(out));
  return out;
}

function isZero(count: Tensor): Tensor {
  const isEmpty = Tensor.empty([1], 'bool', count.device);
  const zero = expandView(constant(0, count.dtype, count.device), [1]);
  kernels.compare({ a: count, b: zero, out: isEmpty, op: 'eq' });
  return isEmpty;
}

/**
 * Changes a `count` [1] of 0 to 1, and counts it by the counter of countEmptyMeans(). Returns
 * `count`.
 */
export function replaceZero(count: Tensor): Tensor {
  const isEmpty = isZero(count);
  incrementIf(count, isEmpty);
  if (emptyMeans?.device === count.device) incrementIf(emptyMeans, isEmpty);
  return count;
}

/** Adds 1 to `sum` [1] if `flag` [1] is set. */
function incrementIf(sum: Tensor, flag: Tensor): void {
  const tensor = Tensor.empty([1], sum.dtype, sum.device);
  kernels.copy({ in: flag, out: tensor });
  kernels.binary({ a: sum, b: tensor, out: sum, op: 'add', accumulate: false });
}

/** Returns the number of rows that count, [1], on the target's device; the host does not wait. */
function countRows(target: View, ignoreIndex: number, dtype: DType): Tensor {
  const { device } = target.buffer;
  const counts = Tensor.empty(target.shape, 'bool', device);
  const ignored = expandView(constant(ignoreIndex, target.dtype, device), target.shape);
  kernels.compare({ a: target, b: ignored, out: counts, op: 'ne' });
  const ones = Tensor.empty(target.shape, dtype, device);
  kernels.copy({ in: counts, out: ones });
  const count = Tensor.empty([1], dtype, device);
  kernels.reduce({ in: ones, out: count, op: 'sum', accumulate: false });
  return count;
}

/** Returns sum(losses) / count as a scalar. */
export function average(losses: Tensor, count: Tensor): Tensor {
  const out = Tensor.empty([], losses.dtype, losses.device);
  const result = viewOf(out, [1]);
  kernels.reduce({ in: losses, out: result, op: 'sum', accumulate: false });
  kernels.binary({ a: result, b: count, out: result, op: 'div', accumulate: false });
  return out;
}

/** Returns the gradient of each row's loss, [1]. */
export function rowScale(grad: Tensor, count: Tensor): Tensor {
  const out = Tensor.emptyLike(count);
  kernels.binary({ a: viewOf(grad, [1]), b: count, out, op: 'div', accumulate: false });
  return out;
}

/**
 * Throws DS_SHAPE unless there is a target for each of the rows `lead`; DS_DTYPE or DS_DEVICE as
 * requireIndex().
 */
export function checkTarget(
  op: string,
  values: Tensor,
  lead: readonly number[],
  target: Tensor,
): void {
  requireIndex(op, values, target);
  if (numel(target.shape) !== numel(lead)) {
    throw shapeError(op, `a target for each of the rows [${lead.join(', ')}]`, describe(target));
  }
}

/** Returns the logits as rows [N, V] of any row stride; copies if no such view exists. */
function logitRows(logits: Tensor): View {
  const { shape, strides } = logits;
  const n = shape.length;
  let areRowsUniform = strides[n - 1] === 1;
  for (let d = 0; areRowsUniform && d < n - 2; ++d) {
    areRowsUniform =
      shape[d] === 1 || strides[d] === required(strides[d + 1]) * required(shape[d + 1]);
  }
  const rows = rowCount(shape);
  const columns = shape[n - 1] ?? 0; // The op refuses logits without a dim.
  if (n >= 2 && areRowsUniform)
    return viewOf(logits, [rows, columns], [required(strides[n - 2]), 1]);
  return viewOf(toRowMajor(logits), [rows, columns]);
}

/** Computes crossEntropy() of class numbers without class weights, in one pass over the logits. */
export function classCrossEntropy(logits: Tensor, target: Tensor, rules: RowRules): Tensor {
  const rows = logitRows(logits);
  const count = required(rows.shape[0]);
  const flat = toRowMajor(target);
  const at = viewOf(flat, [count]);
  const losses = Tensor.empty([count], statisticOf(logits.dtype), logits.device);
  const lse = Tensor.emptyLike(losses);
  const correct = allocateCorrect(rules, count, logits.device);
  const { smoothing, ignoreIndex } = rules;
  const settings = { smoothing, ignoreIndex, ...allClasses };
  kernels.crossEntropy({ logits: rows, target: at, losses, lse, correct, ...settings });
  const sums = allocateSums(rules, correct, lse);
  if (sums) kernels.logitSums({ logits: rows, target: at, lse, ...sums, ignoreIndex });
  reportSums(rules, { lse, sums, classes: required(rows.shape[1]) });
  const divisor = divisorOf(rules, { target: at, losses, correct });
  const out = average(losses, divisor);
  record('cross_entropy', [logits], [out], [logits, flat, lse, divisor], ([grad], sink) => {
    const scale = rowScale(grad, divisor);
    const source = logitRows(logits);
    sink.write(0, (dx, accumulate) =>
      overwriteOrAdd(dx, accumulate, (to) => {
        const dlogits = viewOf(to, source.shape);
        kernels.crossEntropyBackward({
          logits: source,
          target: at,
          lse,
          scale,
          dlogits,
          ...settings,
        });
      }),
    );
  });
  return out;
}
