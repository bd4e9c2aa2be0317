// Element-wise losses of an input and a target: squared, absolute, Huber, binary cross-entropy, KL
// divergence.

import { isFloating } from '../../runtime/dtype.js';
import { formatValue } from '../../runtime/format-value.js';
import { argumentError } from '../../runtime/input-errors.js';
import { namesOf, readOptions } from '../../runtime/options.js';
import { requireFinite } from '../../runtime/require-number.js';
import { required } from '../../runtime/required.js';
import { describe } from '../../runtime/view.js';
import { scope } from '../scope.js';
import { Tensor } from '../tensor.js';
import { cast } from './creation.js';
import { customFunction } from './custom-function.js';
import { add, div, maximum, minimum, mul, ne, sub, where } from './elementwise.js';
import type { Operand } from './operands.js';
import { mean, sum } from './reduce.js';
import { requireTensor, sameShape, shapeError } from './shapes.js';
import { abs, exp, log, neg, sigmoid, square } from './unary.js';

const REDUCTIONS = ['mean', 'sum', 'none'] as const;

/** Reduction of the element losses: their mean, their sum, or no reduction. */
export type LossReduction = (typeof REDUCTIONS)[number];

/** Options that the losses of an input and a target share. */
export interface LossOptions {
  /**
   * How the losses of elements become the result. Default: "mean", which is NaN without elements.
   */
  reduction?: LossReduction;
}

/**
 * Returns `value`, or "mean" if it is undefined. Throws DS_ARGUMENT if it is not one of `known`.
 */
export function reductionOf<Name extends string = LossReduction>(
  op: string,
  value: Name | undefined,
  known: readonly string[] = REDUCTIONS,
): Name {
  const reduction = value ?? 'mean';
  if (known.includes(reduction)) return reduction as Name;
  const expected = known.map((name) => `"${name}"`).join(' or ');
  const got = formatValue(value);
  throw argumentError(`${op} reduction`, expected, got);
}

/** Reduces the losses by `reduction`. */
function reduce(losses: Tensor, reduction: LossReduction): Tensor {
  if (reduction === 'none') return losses;
  return reduction === 'sum' ? sum(losses) : mean(losses);
}

/**
 * Throws DS_SHAPE unless the target has x's shape or one element, DS_ARGUMENT if x is not a tensor.
 */
function requireTarget(op: string, x: Tensor, target: Operand): void {
  requireTensor(op, x);
  const isLike =
    !(target instanceof Tensor) || target.numel === 1 || sameShape(x.shape, target.shape);
  if (isLike) return;
  const hint = 'The two shapes would broadcast to all pairs: reshape() one of them.';
  throw shapeError(op, `a target like ${describe(x)}`, describe(target), hint);
}

/**
 * Calls body(x, target) with two floating dtypes converted to the wider one, f32 for f16 and bf16,
 * as PyTorch's losses do. So 16-bit outputs and f32 targets give an f32 loss.
 */
function promote(x: Tensor, target: Operand, body: (x: Tensor, target: Operand) => Tensor): Tensor {
  const isPlain =
    !(target instanceof Tensor) || x.dtype === target.dtype || !isFloating(target.dtype);
  if (isPlain || !isFloating(x.dtype)) return body(x, target);
  const wide = x.dtype === 'f64' || target.dtype === 'f64' ? 'f64' : 'f32';
  return body(cast(x, wide), cast(target, wide));
}

/** Returns the reduced loss `rule` of the differences x - target. */
function differenceLoss(
  op: string,
  x: Tensor,
  target: Operand,
  givenReduction: LossReduction | undefined,
  rule: (difference: Tensor) => Tensor,
): Tensor {
  requireTarget(op, x, target);
  const reduction = reductionOf(op, givenReduction);
  const losses = (a: Tensor, b: Operand): Tensor => reduce(rule(sub(a, b)), reduction);
  return scope(() => promote(x, target, losses));
}

/**
 * Returns (x - target)^2, averaged: of x's dtype, or of the wider dtype if the target is floating.
 * The target has x's shape or one element. Throws DS_SHAPE or DS_DTYPE if the tensors do not fit
 * together, DS_ARGUMENT for invalid options.
 */
export function mse(x: Tensor, target: Operand, given: LossOptions = {}): Tensor {
  const { reduction } = readOptions('mse', given, namesOf.LossOptions);
  return differenceLoss('mse', x, target, reduction, square);
}

/** Returns |x - target|, averaged; else as mse(). The gradient is 0 where they are equal. */
export function l1Loss(x: Tensor, target: Operand, given: LossOptions = {}): Tensor {
  const { reduction } = readOptions('l1_loss', given, namesOf.LossOptions);
  return differenceLoss('l1_loss', x, target, reduction, abs);
}

/**
 * Returns d^2 / 2 if d = |x| is below `bound`, else bound (d - bound / 2).
 */
function huberOf(x: Tensor, bound: number): Tensor {
  const distance = abs(x);
  const clamped = minimum(distance, bound);
  return mul(clamped, sub(distance, mul(clamped, 0.5)));
}

/** Options of huberLoss(). */
export interface HuberLossOptions extends LossOptions {
  /** Differences from here on have a linear loss; above 0. Default: 1. */
  delta?: number;
}

/**
 * Returns half the squared difference below `delta`, delta (|x - target| - delta / 2) above,
 * averaged; else as mse(). Source: Huber 1964.
 */
export function huberLoss(x: Tensor, target: Operand, given: HuberLossOptions = {}): Tensor {
  const options = readOptions('huber_loss', given, namesOf.HuberLossOptions);
  const delta = requireFinite('huber_loss delta', options.delta ?? 1, Number.MIN_VALUE);
  const rule = (difference: Tensor): Tensor => huberOf(difference, delta);
  return differenceLoss('huber_loss', x, target, options.reduction, rule);
}

/** Options of smoothL1Loss(). */
export interface SmoothL1LossOptions extends LossOptions {
  /**
   * Differences below this have a quadratic loss; 0: no quadratic part, as l1Loss(). Default: 1.
   */
  beta?: number;
}

/** Returns huberLoss() with delta = beta, divided by beta: its slope is 1 far from the target. */
export function smoothL1Loss(x: Tensor, target: Operand, given: SmoothL1LossOptions = {}): Tensor {
  const options = readOptions('smooth_l1_loss', given, namesOf.SmoothL1LossOptions);
  const beta = requireFinite('smooth_l1_loss beta', options.beta ?? 1, 0);
  const rule = (difference: Tensor): Tensor =>
    beta === 0 ? abs(difference) : mul(huberOf(difference, beta), 1 / beta);
  return differenceLoss('smooth_l1_loss', x, target, options.reduction, rule);
}

/**
 * Returns log(1 + x) for x >= 0 with full relative precision, even if 1 + x rounds to 1. Source:
 * Kahan's correction (Goldberg 1991).
 */
function log1pOf(x: Tensor): Tensor {
  const rounded = add(x, 1);
  const step = sub(rounded, 1);
  const isTiny = step.eq(0);
  const factor = where(isTiny, 1, div(log(rounded), where(isTiny, 1, step)));
  return mul(factor, x);
}

/** Returns log(1 + exp(x)) without overflow; floating dtypes. */
const softplusOf = customFunction<Tensor>({
  name: 'softplus',
  forward(context, x) {
    context.save(x);
    return add(maximum(x, 0), log1pOf(exp(neg(abs(x)))));
  },
  backward({ saved: [x] }, grad) {
    return mul(required(grad), sigmoid(required(x)));
  },
});

/** Options of binaryCrossEntropyWithLogits(). */
export interface BceWithLogitsOptions extends LossOptions {
  /** Factor of each loss; broadcasts to x's shape. */
  weight?: Tensor;
  /** Factor of the losses of positive targets; broadcasts to x's shape, for example [classes]. */
  posWeight?: Tensor;
}

/**
 * Returns -(posWeight t log sigmoid(x) + (1 - t) log(1 - sigmoid(x))), averaged: binary
 * cross-entropy of logits x with targets t in [0, 1] of x's shape, without overflow. Dtype as in
 * mse(). Throws DS_SHAPE or DS_DTYPE if the tensors do not fit together, DS_ARGUMENT for invalid
 * options.
 */
export function binaryCrossEntropyWithLogits(
  x: Tensor,
  target: Tensor,
  given: BceWithLogitsOptions = {},
): Tensor {
  const op = 'binary_cross_entropy_with_logits';
  const options = readOptions(op, given, namesOf.BceWithLogitsOptions);
  const { weight, posWeight } = options;
  const reduction = reductionOf(op, options.reduction);
  requireTensor(op, x);
  requireTensor(op, target);
  if (!sameShape(x.shape, target.shape)) {
    throw shapeError(op, `a target like ${describe(x)}`, describe(target));
  }
  const losses = (x: Tensor, other: Operand): Tensor => {
    const targets = cast(other as Tensor, x.dtype);
    const negative = mul(sub(1, targets), x);
    const tail = softplusOf(neg(x));
    // (1 - t) x + (1 - t + posWeight t) log(1 + exp(-x)).
    const factor = posWeight && add(mul(targets, sub(posWeight.to(x.dtype), 1)), 1);
    const losses = add(negative, factor ? mul(factor, tail) : tail);
    requireBroadcast(op, x, losses);
    const weighted = weight ? mul(losses, weight.to(x.dtype)) : losses;
    requireBroadcast(op, x, weighted);
    return reduce(weighted, reduction);
  };
  return scope(() => promote(x, target, losses));
}

/** Throws DS_SHAPE if weights with more elements than x have broadcast the losses. */
function requireBroadcast(op: string, x: Tensor, losses: Tensor): void {
  if (sameShape(x.shape, losses.shape)) return;
  throw shapeError(op, `weights that repeat to ${describe(x)}`, `losses ${describe(losses)}`);
}

/** Options of klDiv(). */
export interface KlDivOptions {
  /**
   * "batchmean" divides the sum by the size of dim 0, as the definition does. Default: "mean", as
   * in PyTorch.
   */
  reduction?: LossReduction | 'batchmean';
  /** Whether the target holds logarithms too. Default: false. */
  logTarget?: boolean;
}

/**
 * Returns target (log target - x) for log probabilities x and probabilities `target` of x's shape,
 * 0 where the target is 0; averaged over all elements, of the dtype that mse() has. Throws DS_SHAPE
 * or DS_DTYPE if the tensors do not fit together, DS_ARGUMENT for invalid options. Source: Kullback
 * & Leibler 1951.
 */
export function klDiv(x: Tensor, target: Tensor, given: KlDivOptions = {}): Tensor {
  const options = readOptions('kl_div', given, namesOf.KlDivOptions);
  const known = ['mean', 'batchmean', 'sum', 'none'];
  const reduction = reductionOf<LossReduction | 'batchmean'>('kl_div', options.reduction, known);
  requireTensor('kl_div', target);
  requireTarget('kl_div', x, target);
  const lossOf = (x: Tensor, other: Operand): Tensor => {
    const target = other as Tensor;
    const losses = options.logTarget
      ? mul(exp(target), sub(target, x))
      : sub(entropyTerm(target), mul(target, x));
    if (reduction !== 'batchmean') return reduce(losses, reduction);
    return div(sum(losses), x.shape[0] ?? 1);
  };
  return scope(() => promote(x, target, lossOf));
}

/** Returns t log t; 0 where t is 0. */
function entropyTerm(target: Tensor): Tensor {
  const isPositive = ne(target, 0);
  return where(isPositive, mul(target, log(where(isPositive, target, 1))), 0);
}
