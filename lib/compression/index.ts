// The API of compression: quantization and pruning during training.
export { clean } from './clean.js';
export {
  type Compression,
  compress,
  compressionOf,
  hasTechniques,
  isOn,
  requireUncompressed,
} from './compress.js';
export { CompressedEmbedding, CompressedLinear } from './compressed-layers.js';
export { reduceLayers } from './layer-reduction.js';
export type { CompressionSection } from './technique.js';
