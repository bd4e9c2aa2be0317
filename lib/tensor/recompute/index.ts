// Activation checkpointing with DeepSpeed's API: the namespace `checkpointing`.
export { checkpoint, checkpointParts } from './checkpoint.js';
export {
  type CheckpointingOptions,
  configure,
  fewestKeptKeys,
  isConfigured,
  isHeadEarly,
  reset,
  times,
} from './policy.js';
export { checkpointSequential, type Layer, segmentsOf } from './sequential.js';
export type { SegmentObserver, SegmentRun, SegmentTimes } from './watch.js';
