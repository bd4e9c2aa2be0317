// All differentiable functions.
export * from './attention.js';
export * from './creation.js';
export * from './cross-entropy.js';
export * from './custom-function.js';
export * from './dropout.js';
export * from './elementwise.js';
export { embedding, gather } from './indexing.js';
export { linear, linearGelu, linearPadded } from './linear.js';
export {
  countEmptyMeans,
  type LinearCrossEntropyOptions,
  linearCrossEntropy,
  type RowOptions,
} from './loss.js';
export { matmul } from './matmul.js';
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
export * from './reduce.js';
export * from './unary.js';
export * from './views.js';
