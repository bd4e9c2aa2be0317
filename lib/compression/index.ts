// The API of compression: quantization and pruning during training.
export { cleanCompression } from './clean.js';
export {
  type Compression,
  compress,
  compressionOf,
  hasTechniques,
  isCompressionEnabled,
  requireUncompressed,
} from './compress.js';
export { CompressedEmbedding, CompressedLinear } from './compressed-layers.js';
export { reduceLayers } from './layer-reduction.js';
export type { CompressionSection } from './technique.js';
