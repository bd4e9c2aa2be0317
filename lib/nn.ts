// The public nn namespace: layers, models and functions on them.

export { type GgufType, type SaveGgufOptions, saveGguf } from './models/gguf/save.js';
/** Complete models. */
export * as models from './models/index.js';
export {
  type LoadedWeights,
  type LoadWeightsOptions,
  loadWeights,
} from './models/load-weights.js';
export { type QuantizeModelOptions, quantizeModel } from './models/quantize-model.js';
export { type SaveWeightsOptions, saveWeights } from './models/save-weights.js';
export * from './nn/index.js';
