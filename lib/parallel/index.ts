// The exports of lib/parallel: layers that are split over ranks, and samples with tokens that are
// split over ranks.
export {
  copyToGroup,
  gatherForGroup,
  gatherFromGroup,
  scatterToGroup,
  sumOverGroup,
  sumToParts,
} from './collectives.js';
export {
  ChannelDropout,
  ColumnLinear,
  type ColumnLinearOptions,
  type LayerCutOptions,
  RowLinear,
  type RowLinearOptions,
  VocabularyEmbedding,
} from './layers.js';
export {
  groupOf,
  type Parallelizable,
  type ParallelizeOptions,
  parallelize,
  sumPartialGradients,
} from './parallelize.js';
export type { LayerStyle, SequencePlan, StyleName, TensorPlan } from './plan.js';
export type { HeadCounts } from './rank-ranges.js';
export { type SequenceParallel, SequencePart, SequenceRanks } from './sequence-ranks.js';
export { VocabularyHead, vocabularyCrossEntropy, type WholeHead } from './vocabulary-head.js';
