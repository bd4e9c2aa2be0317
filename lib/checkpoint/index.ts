// The exports of lib/checkpoint: files of named tensors that any number of ranks writes and reads.
export {
  type Consolidated,
  type ConsolidateOptions,
  consolidate,
  consolidateWithFiles,
  DTYPES as EXPORT_DTYPES,
  type ExportDType,
  type ExportFormat,
  layOut,
  TORCH_DTYPES,
} from './consolidate.js';
export { convertValues as converted } from './convert.js';
export { findLatest, listTags, MANIFEST } from './directory.js';
export { requireFree, writeFolder } from './export-folder.js';
export { Fields } from './fields.js';
export { ifThere } from './file-error.js';
export {
  type FileSlice,
  fileSlicesOf,
  inFileSlices,
  readSliceNames,
  type SliceNames,
} from './file-slices.js';
export { requirePath } from './folder.js';
export { isFurtherGguf } from './gguf/files.js';
export { GgufFile, type GgufPart } from './gguf/gguf-file.js';
export {
  GGUF_MAGIC,
  type GgufHeader,
  type GgufTensor,
  type GgufValue,
  metadataTensor,
  readGgufHeader,
} from './gguf/header.js';
export { blockValues, type PackedType, packValues as packed } from './gguf/quantize.js';
export { runsOf, type ValueOrder } from './gguf/value-order.js';
export {
  F32,
  type GgufMetadata,
  type WrittenTensor,
  type WrittenValue,
  writeGguf,
} from './gguf/writer.js';
export { type FileMetadata, unreadDType } from './header.js';
export type { TensorRecord } from './manifest.js';
export { BEGIN_LOAD, Checkpoint, type Section } from './open.js';
export { isUnfinishedFile, moveFile, replaceBy, replaceFile } from './replace-file.js';
export { SafetensorsFile } from './safetensors-file.js';
export type { TensorSource } from './safetensors-writer.js';
export {
  BEGIN_SAVE,
  type CheckpointContent,
  Save,
  type SaveTarget,
  saveCheckpoint,
  type TagValidation,
} from './save.js';
export {
  isRemote,
  type LocalShard,
  type PendingTensor,
  partsOf,
  type Remote,
  type Shard,
  type TensorInfo,
} from './shard.js';
export { BEGIN_EXPORT, writeAlone, writeTogether } from './shared-file.js';
export { generationOf, WeightFiles } from './weight-files.js';
export { type CheckpointWorld, onAllRanks, soloWorld } from './world.js';
