// The API of lib/peft: adapters, and 4-bit weights.
export { type LoadAdapterOptions, loadAdapter, saveAdapter } from './adapter-files.js';
export { type SaveAdaptersOptions, saveAdapters } from './adapter-folders.js';
export {
  activeAdapters,
  adapterNames,
  addAdapter,
  deleteAdapter,
  setAdapter,
} from './adapter-sets.js';
export { DoraEmbedding, DoraLinear } from './dora.js';
export {
  addLora,
  lorasOf,
  merge,
  mergedNames,
  requireUnmerged,
  unload,
  unmerge,
  withoutAdapters,
} from './lora.js';
export { type AnyExperts, ExpertFactors, LoraExperts } from './lora-experts.js';
export { LoraEmbedding, LoraLayer, LoraLinear, type LoraSizes } from './lora-layer.js';
export type { LoraBias, LoraOptions } from './lora-options.js';
export { NF4Experts, NF4Matrices } from './nf4-experts.js';
export {
  isPlain,
  quantizationConfig,
  quantizedNames,
  quantStates,
  type ReadQuantized,
  readQuantized,
  requireWholeExperts,
} from './nf4-files.js';
export { type NF4Layout, NF4Linear, type NF4Options } from './nf4-linear.js';
export { type QuantizeOptions, quantize, quantizeUnmade } from './quantize.js';
export { addWeightedAdapter, type WeightedAdapterOptions } from './weighted-adapter.js';
