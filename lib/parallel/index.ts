// The API of the parallel room: split layers, and split tokens of samples.
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
export { type SequenceParallel, SequencePart, SequenceRanks } from './sequence-share.js';
export type { HeadCounts } from './share.js';
export { VocabularyHead, vocabularyCrossEntropy, type WholeHead } from './vocabulary-head.js';
