// Cross-entropy and negative log-likelihood with class weights, label smoothing, probability
// targets and reductions.

import type { DsError } from '../../errors.js';
import { isFloating, statisticOf } from '../../runtime/dtype.js';
import { argumentError } from '../../runtime/input-errors.js';
import { namesOf, readOptions } from '../../runtime/options.js';
import { describe } from '../../runtime/view.js';
import { scope } from '../scope.js';
import { noGrad } from '../tape.js';
import { Tensor } from '../tensor.js';
import { clone } from './arrange.js';
import { cast, full } from './creation.js';
import { add, div, mul, ne, where } from './elementwise.js';
import { gather } from './indexing.js';
import {
  checkTarget,
  classCrossEntropy,
  type RowLossOptions,
  type RowOptions,
  type RowRules,
  replaceZero,
  rowRulesOf,
} from './loss.js';
import type { LossReduction } from './pointwise-losses.js';
import { logSoftmax, sum } from './reduce.js';
import { requireSameDevice, requireTensor, sameShape, shapeError } from './shapes.js';
import { neg } from './unary.js';
import { expand, reshape, squeeze, unsqueeze } from './views.js';

/** Options of nllLoss(). */
export interface NllLossOptions extends RowOptions {
  /** Shape [V]: factor of the rows with each target. A mean divides by the sum of the factors. */
  weight?: Tensor;
  /** How the losses of elements become the result. Default: "mean": 0 where no row counts. */
  reduction?: LossReduction;
}

/**
 * Options of crossEntropy(). A report needs class numbers as targets, no weights, and a mean or a
 * sum.
 */
export interface CrossEntropyOptions extends RowLossOptions, Pick<NllLossOptions, 'weight'> {}

/** The options of one call, complete. */
interface Rules extends RowRules {
  op: string;
  weight: Tensor | null;
}

function rulesOf(op: string, scores: Tensor, options: CrossEntropyOptions): Rules {
  const rows = rowRulesOf(op, options, scores.device);
  const weight = options.weight ?? null;
  if (!weight) return { op, weight, ...rows };
  requireSameDevice(op, scores, weight);
  const classes = scores.shape.at(-1) ?? 0;
  if (weight.ndim !== 1 || weight.shape[0] !== classes) {
    throw shapeError(op, `class weights [${classes}]`, describe(weight));
  }
  return { op, weight, ...rows };
}

/**
 * Returns -log softmax(logits)[target] over rows, averaged over the rows that count: f32 (f64 for
 * f64); 0 if no row counts. The classes are the last dim (PyTorch: dim 1). Logits are [.., V];
 * targets are class numbers [..] of i32 or i64, or probabilities [.., V] of a floating dtype, which
 * ignore no row. Class numbers without weights and with a scalar result take one pass over the
 * logits. Throws DS_SHAPE, DS_DTYPE, DS_DEVICE, DS_ARGUMENT, DS_INDEX (CPU; NaN on a GPU).
 */
export function crossEntropy(
  logits: Tensor,
  target: Tensor,
  given: CrossEntropyOptions = {},
): Tensor {
  const op = 'cross_entropy';
  requireTensor(op, logits);
  const options = readOptions(op, given, namesOf.CrossEntropyOptions);
  const rules = rulesOf(op, logits, options);
  const isSoft = target instanceof Tensor && isFloating(target.dtype);
  if (isSoft && sameShape(logits.shape, target.shape)) {
    if (options.ignoreIndex !== undefined) throw noIgnoredRowsError(op);
    if (rules.report) throw noReportError(op);
    return scope(() => lossOfProbabilities(logSoftmaxOf(logits), target, rules));
  }
  checkTarget(op, logits, logits.shape.slice(0, -1), target);
  if (!rules.weight && rules.reduction !== 'none') return classCrossEntropy(logits, target, rules);
  if (rules.report) throw noReportError(op);
  return scope(() => lossOfClasses(logSoftmaxOf(logits), target, rules));
}

/**
 * Returns -logProbabilities[target] over rows: crossEntropy() of log probabilities [.., V]; f32
 * (f64 for f64). Throws as crossEntropy() does.
 */
export function nllLoss(
  logProbabilities: Tensor,
  target: Tensor,
  given: NllLossOptions = {},
): Tensor {
  requireTensor('nll_loss', logProbabilities);
  const rules = rulesOf(
    'nll_loss',
    logProbabilities,
    readOptions('nll_loss', given, namesOf.NllLossOptions),
  );
  checkTarget('nll_loss', logProbabilities, logProbabilities.shape.slice(0, -1), target);
  const wide = statisticOf(logProbabilities.dtype);
  return scope(() => lossOfClasses(cast(logProbabilities, wide), target, rules));
}

function logSoftmaxOf(logits: Tensor): Tensor {
  return logSoftmax(cast(logits, statisticOf(logits.dtype)), -1);
}

function lossOfClasses(logs: Tensor, target: Tensor, rules: Rules): Tensor {
  const { weight, smoothing, ignoreIndex, reduction, divisor } = rules;
  const classes = logs.shape.at(-1) ?? 0;
  const lead = logs.shape.slice(0, -1);
  const targets = reshape(target, lead);
  const counts = ne(targets, ignoreIndex);
  const at = unsqueeze(where(counts, targets, 0), -1);
  const factors = noGrad(() => {
    const scale = cast(weight ?? Tensor.from([1]), logs.dtype).to(logs.device);
    const rowFactors = weight ? gather(expand(scale, logs.shape), -1, at) : expand(scale, at.shape);
    return where(counts, squeeze(rowFactors, -1), 0);
  });
  // Ignored rows get the loss 0 here: the factor 0 times an infinite loss would be NaN.
  const picked = where(counts, squeeze(gather(logs, -1, at), -1), 0);
  let losses = neg(mul(picked, factors));
  if (smoothing > 0) {
    const uniformLosses = where(counts, neg(sum(weigh(logs, weight), -1)), 0);
    losses = add(mul(losses, 1 - smoothing), mul(uniformLosses, smoothing / classes));
  }
  if (reduction === 'none') return losses;
  if (reduction === 'sum') return sum(losses);
  if (divisor !== null) return div(sum(losses), squeeze(divisorTensor(divisor, losses), 0));
  const count = noGrad(() => replaceZero(reshape(sum(factors), [1])));
  return div(sum(losses), squeeze(count, 0));
}

function lossOfProbabilities(logs: Tensor, target: Tensor, rules: Rules): Tensor {
  const { weight, smoothing, reduction, divisor } = rules;
  const classes = logs.shape.at(-1) ?? 0;
  requireSameDevice(rules.op, logs, target);
  const exact = cast(target, logs.dtype);
  const smoothed = smoothing > 0 ? add(mul(exact, 1 - smoothing), smoothing / classes) : exact;
  const losses = neg(sum(mul(weigh(logs, weight), smoothed), -1));
  if (reduction === 'none') return losses;
  if (divisor !== null) return div(sum(losses), squeeze(divisorTensor(divisor, losses), 0));
  return reduction === 'sum' ? sum(losses) : div(sum(losses), Math.max(1, losses.numel));
}

/** Returns `divisor` as a tensor [1] in the losses' dtype; 0 in a tensor becomes 1. */
function divisorTensor(divisor: number | Tensor, losses: Tensor): Tensor {
  if (typeof divisor === 'number') return full([1], divisor, losses);
  return noGrad(() => replaceZero(reshape(clone(cast(divisor, losses.dtype)), [1])));
}

function weigh(logs: Tensor, weight: Tensor | null): Tensor {
  return weight ? mul(logs, cast(weight, logs.dtype)) : logs;
}

function noReportError(op: string): DsError {
  return argumentError(
    `${op} report`,
    'class numbers as targets, no class weights, and a mean or a sum',
    'a loss that computes no argmax',
    'Compare the argmax of the logits with the targets: logits.argmax(-1).eq(targets).',
  );
}

function noIgnoredRowsError(op: string): DsError {
  return argumentError(
    `${op} ignoreIndex`,
    'class numbers as targets, i32 or i64',
    'probabilities, which ignore no row',
  );
}
