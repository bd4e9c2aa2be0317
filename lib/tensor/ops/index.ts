// All functions of tensors.
export * from './arrange.js';
export * from './attention.js';
export type { AttentionReach, DocumentPair, KeyFilter } from './attention-filter.js';
export type { ClassShare } from './class-share.js';
export * from './creation.js';
export * from './cross-entropy.js';
export * from './custom-function.js';
export * from './dropout.js';
export * from './einsum.js';
export * from './elementwise.js';
export {
  choicesOf,
  combineRows,
  groupedLinear,
  groupRows,
  type RouteOptions,
  type Routes,
  type RowGroups,
  routeTopK,
} from './experts.js';
export * from './in-place.js';
export { embedding, gather } from './indexing.js';
export { linear, linearGelu, linearPadded } from './linear.js';
export { type LinearCrossEntropyOptions, linearCrossEntropy } from './linear-cross-entropy.js';
export * from './logic.js';
export { countEmptyMeans, type RowLossOptions, type RowOptions } from './loss.js';
export { type LossCounts, LossReport } from './loss-report.js';
export { matmul } from './matmul.js';
export * from './multinomial.js';
export * from './norm.js';
export type { Operand } from './operands.js';
export {
  type BceWithLogitsOptions,
  binaryCrossEntropyWithLogits,
  type HuberLossOptions,
  huberLoss,
  type KlDivOptions,
  klDiv,
  type LossOptions,
  type LossReduction,
  l1Loss,
  mse,
  type SmoothL1LossOptions,
  smoothL1Loss,
} from './pointwise-losses.js';
export * from './ranges.js';
export {
  argmax,
  logSoftmax,
  max,
  mean,
  min,
  prod,
  type ReduceOptions,
  type Reduction,
  softmax,
  sum,
} from './reduce.js';
export * from './rope.js';
export * from './scan.js';
export * from './scatter.js';
export type { Sizes } from './shapes.js';
export * from './sort.js';
export * from './statistics.js';
export * from './swiglu.js';
export * from './unary.js';
export { type Pair, unfold, type WindowOptions } from './unfold.js';
export * from './views.js';
