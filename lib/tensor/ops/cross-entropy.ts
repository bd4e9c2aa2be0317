// Cross-entropy and negative log-likelihood with class weights, label smoothing, probabilities as targets and reductions.
import { DsError } from '../../errors.js';
import { isFloating, statisticOf } from '../../runtime/dtype.js';
import { type OptionNames, readOptions } from '../../runtime/options.js';
import { requireFinite } from '../../runtime/require-number.js';
import { describe } from '../../runtime/view.js';
import { noGrad } from '../autograd.js';
import { scope } from '../scope.js';
import { Tensor } from '../tensor.js';
import { cast } from './creation.js';
import { add, div, mul, ne, where } from './elementwise.js';
import { gather } from './indexing.js';
import { checkTarget, ignoreIndexOf, meanCrossEntropy, orOne, type RowOptions } from './loss.js';
import { type LossReduction, reductionOf } from './pointwise-losses.js';
import { logSoftmax, sum } from './reduce.js';
import { requireSameDevice, requireTensor, sameShape, shapeError } from './shapes.js';
import { neg } from './unary.js';
import { expand, reshape, squeeze, unsqueeze } from './views.js';

/** Options of nllLoss(). */
export interface NllLossOptions extends RowOptions {
  /** Shape [V], the factor of the rows with each target; a mean is divided by the sum of the factors. */
  weight?: Tensor;
  /** Default "mean": 0 where no row counts. */
  reduction?: LossReduction;
}

/** Options of crossEntropy(). */
export interface CrossEntropyOptions extends NllLossOptions {
  /** Share of the target that goes to all classes alike, in [0, 1]. Default 0. Source: Szegedy et al. 2016. */
  labelSmoothing?: number;
}

const NLL: OptionNames<NllLossOptions> = { ignoreIndex: true, weight: true, reduction: true };
const CROSS: OptionNames<CrossEntropyOptions> = { ...NLL, labelSmoothing: true };

/** How the rows of one call count. */
interface Rules {
  op: string;
  weight: Tensor | null;
  smoothing: number;
  ignoreIndex: number;
  reduction: LossReduction;
}

function rulesOf(op: string, scores: Tensor, options: CrossEntropyOptions): Rules {
  const given = options.labelSmoothing ?? 0;
  const smoothing = given === 1 ? 1 : requireFinite(`${op} labelSmoothing`, given, 0, 1);
  const ignoreIndex = ignoreIndexOf(op, options);
  const reduction = reductionOf(op, options.reduction);
  const weight = options.weight ?? null;
  if (!weight) return { op, weight, smoothing, ignoreIndex, reduction };
  requireSameDevice(op, scores, weight);
  const classes = scores.shape[scores.ndim - 1] as number;
  if (weight.ndim !== 1 || weight.shape[0] !== classes) {
    throw shapeError(op, `class weights [${classes}]`, describe(weight));
  }
  return { op, weight, smoothing, ignoreIndex, reduction };
}

/**
 * -log softmax(logits)[target] over rows, averaged over those that count: f32 (f64 for f64); 0 where none does. The
 * classes are the last dim, where PyTorch has them in dim 1: logits [.., V] with targets [..] of i32 or i64, or with
 * probabilities [.., V] of a floating dtype, which ignore no row. Without weights, smoothing and another reduction it is
 * one pass over the logits. Throws DS_SHAPE, DS_DTYPE, DS_ARGUMENT, DS_INDEX (CPU; NaN on a GPU).
 */
export function crossEntropy(
  logits: Tensor,
  target: Tensor,
  given: CrossEntropyOptions = {},
): Tensor {
  const op = 'cross_entropy';
  requireTensor(op, logits);
  const options = readOptions(op, given, CROSS);
  const rules = rulesOf(op, logits, options);
  const isSoft = target instanceof Tensor && isFloating(target.dtype);
  if (isSoft && sameShape(logits.shape, target.shape)) {
    if (options.ignoreIndex !== undefined) throw nothingToIgnore(op);
    return scope(() => ofProbabilities(logSoftmaxOf(logits), target, rules));
  }
  checkTarget(op, logits, logits.shape.slice(0, -1), target);
  const { weight, smoothing, reduction, ignoreIndex } = rules;
  if (!weight && smoothing === 0 && reduction === 'mean') {
    return meanCrossEntropy(logits, target, ignoreIndex);
  }
  return scope(() => ofClasses(logSoftmaxOf(logits), target, rules));
}

/**
 * -logProbabilities[target] over rows: crossEntropy() of what are logarithms of probabilities already, [.., V]; f32 (f64
 * for f64). Throws as crossEntropy() does.
 */
export function nllLoss(
  logProbabilities: Tensor,
  target: Tensor,
  given: NllLossOptions = {},
): Tensor {
  requireTensor('nll_loss', logProbabilities);
  const rules = rulesOf('nll_loss', logProbabilities, readOptions('nll_loss', given, NLL));
  checkTarget('nll_loss', logProbabilities, logProbabilities.shape.slice(0, -1), target);
  const wide = statisticOf(logProbabilities.dtype);
  return scope(() => ofClasses(cast(logProbabilities, wide), target, rules));
}

function logSoftmaxOf(logits: Tensor): Tensor {
  return logSoftmax(cast(logits, statisticOf(logits.dtype)), -1);
}

function ofClasses(logs: Tensor, target: Tensor, rules: Rules): Tensor {
  const { weight, smoothing, ignoreIndex, reduction } = rules;
  const classes = logs.shape[logs.ndim - 1] as number;
  const lead = logs.shape.slice(0, -1);
  const wanted = reshape(target, lead);
  const counts = ne(wanted, ignoreIndex);
  const at = unsqueeze(where(counts, wanted, 0), -1);
  const factors = noGrad(() => {
    const scale = cast(weight ?? Tensor.from([1]), logs.dtype).to(logs.device);
    const each = weight ? gather(expand(scale, logs.shape), -1, at) : expand(scale, at.shape);
    return where(counts, squeeze(each, -1), 0);
  });
  // Where no row counts, neither do infinite losses: 0 times infinity is none.
  const picked = where(counts, squeeze(gather(logs, -1, at), -1), 0);
  let losses = neg(mul(picked, factors));
  if (smoothing > 0) {
    const even = where(counts, neg(sum(weighted(logs, weight), -1)), 0);
    losses = add(mul(losses, 1 - smoothing), mul(even, smoothing / classes));
  }
  if (reduction === 'none') return losses;
  if (reduction === 'sum') return sum(losses);
  const count = noGrad(() => orOne(reshape(sum(factors), [1])));
  return div(sum(losses), squeeze(count, 0));
}

function ofProbabilities(logs: Tensor, target: Tensor, rules: Rules): Tensor {
  const { weight, smoothing, reduction } = rules;
  const classes = logs.shape[logs.ndim - 1] as number;
  requireSameDevice(rules.op, logs, target);
  const exact = cast(target, logs.dtype);
  const wanted = smoothing > 0 ? add(mul(exact, 1 - smoothing), smoothing / classes) : exact;
  const losses = neg(sum(mul(weighted(logs, weight), wanted), -1));
  if (reduction === 'none') return losses;
  return reduction === 'sum' ? sum(losses) : div(sum(losses), Math.max(1, losses.numel));
}

function weighted(logs: Tensor, weight: Tensor | null): Tensor {
  return weight ? mul(logs, cast(weight, logs.dtype)) : logs;
}

function nothingToIgnore(op: string): DsError {
  return new DsError({
    code: 'DS_ARGUMENT',
    op: `${op} ignoreIndex`,
    expected: 'class numbers as targets, i32 or i64',
    got: 'probabilities, of which none is ignored',
  });
}
