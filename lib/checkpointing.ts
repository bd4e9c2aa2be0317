// The checkpointing namespace of the public surface: checkpointed segments, and how they are kept.

export {
  type CheckpointingOptions,
  checkpoint,
  checkpointSequential,
  isConfigured,
  type Layer,
  reset,
  type SegmentObserver,
  type SegmentRun,
  type SegmentTimes,
  times,
} from './tensor/recompute/index.js';
export {
  type ActivationCheckpointingSection,
  configure,
} from './tensor/recompute/section.js';
