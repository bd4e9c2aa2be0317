// The nn room's door.
export { CausalSelfAttention, KeyValueCache } from './attention.js';
export type { Initializer } from './initializers.js';
/** Initial values of parameters. Source: torch.nn.init. */
export * as init from './initializers.js';
export * from './layers.js';
export { type LoadedWeights, type LoadWeightsOptions, loadWeights } from './load-weights.js';
export * from './losses.js';
/** Complete models. */
export * as models from './models/index.js';
export {
  type ForwardHook,
  type ForwardPreHook,
  Module,
  type NamedModule,
  type StateDictPreHook,
} from './module.js';
export { Parameter, type Place } from './parameter.js';
export type { PretrainedDescription } from './pretrained.js';
