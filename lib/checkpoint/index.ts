// The checkpoint room's door: files of named tensors, written by any number of ranks and read by any other number.
export {
  type Consolidated,
  type ConsolidateOptions,
  consolidate,
  type ExportDType,
  type ExportFormat,
} from './consolidate.js';
export { converted } from './convert.js';
export { findLatest, listTags } from './directory.js';
export { Fields } from './fields.js';
export { ifThere } from './file-error.js';
export { MANIFEST, type TensorRecord } from './manifest.js';
export { Checkpoint, type Section } from './open.js';
export {
  type CheckpointContent,
  Save,
  type SaveTarget,
  saveCheckpoint,
  type TagValidation,
} from './save.js';
export type { Shard, TensorInfo } from './shard.js';
export { writeTogether } from './shared-file.js';
export { WeightFiles } from './weight-files.js';
export { type CheckpointWorld, inUnison, soloWorld } from './world.js';
