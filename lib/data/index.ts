// The exports of lib/data: datasets, samplers, and the loaders that make batches.
export {
  type AnalyzedMetric,
  type AnalyzeOptions,
  analyze,
  type DifficultyMetric,
} from './analyze.js';
export { type Batched, collate } from './collate.js';
export {
  type CurriculumMetric,
  CurriculumSampler,
  type CurriculumSamplerOptions,
} from './curriculum-sampler.js';
export {
  type CurriculumSchedule,
  type DifficultyRange,
  type FixedRootOptions,
  fixedDiscrete,
  fixedRoot,
} from './curriculum-schedule.js';
export { DataLoader, type DataLoaderOptions, type WorkerThreadOptions } from './data-loader.js';
export {
  type Dataset,
  type DatasetSource,
  type WorkerDatasetOptions,
  workerDataset,
} from './dataset.js';
export { ConcatDataset, randomSplit, type SplitOptions, Subset } from './dataset-parts.js';
export {
  type IterableDataset,
  type Samples,
  type WorkerIterableOptions,
  workerIterable,
} from './iterable-dataset.js';
export { IterableLoader, type IterableLoaderOptions } from './iterable-loader.js';
export { type LengthGroupedOptions, LengthGroupedSampler } from './length-sampler.js';
export { RepeatingLoader } from './repeating-loader.js';
export {
  DistributedSampler,
  type DistributedSamplerOptions,
  RandomSampler,
  Sampler,
  SequentialSampler,
  WeightedRandomSampler,
  type WeightedSamplerOptions,
} from './sampler.js';
export { TensorDataset } from './tensor-dataset.js';
export { TokenDataset } from './token-dataset.js';
export {
  type IndexedTokenOptions,
  TokenFileDataset,
  type TokenFileOptions,
  type TokenLayout,
  writeTokenFile,
} from './token-file.js';
export type { TokenDType } from './token-format.js';
export type { Encode, JsonlSource, TextSource } from './token-text.js';
export type { TokenWindow } from './token-window.js';
export type { ThreadOptions } from './worker-protocol.js';
