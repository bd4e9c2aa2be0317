// All functions of tensors: the operations, and related functions and types.
export { causalSelfAttentionPacked, type HeadShare, type PackedReach } from './attention.js';
export type { AttentionReach, DocumentPair, KeyFilter } from './attention-filter.js';
export {
  BlockLayout,
  type BlockLayoutSizes,
  type SeeBlocks,
} from './block-layout.js';
export type { ClassShare } from './class-share.js';
export * from './cross-entropy.js';
export * from './custom-function.js';
export { dropoutOfChannels, noiseLike } from './dropout.js';
export { compare } from './elementwise.js';
export {
  type ComputedWeight,
  groupedFrozen,
  groupedProduct,
  groupOfRows,
} from './experts.js';
export * from './functions.generated.js';
export { linearGelu, linearOfRank, linearPadded } from './linear.js';
export { type LinearCrossEntropyOptions, linearCrossEntropy } from './linear-cross-entropy.js';
export { countEmptyMeans, type RowLossOptions, type RowOptions } from './loss.js';
export { type LossCounts, LossReport } from './loss-report.js';
export { addLayerNorm, addRmsNorm, layerNorm, rmsNorm } from './norm.js';
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
export * from './rope.js';
export type { Sizes } from './shapes.js';
export {
  chooseTokens,
  drawOf,
  indicesOfTokens,
  replaceRows,
  takeRows,
} from './token-choice.js';
export { unary } from './unary.js';
export { type Pair, unfold, type WindowOptions } from './unfold.js';
