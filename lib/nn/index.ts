// The API of lib/nn: modules, parameters, layers and losses.

export type { Box, Region } from '../runtime/box.js';
export * from './activations.js';
export {
  type CacheReach,
  CausalSelfAttention,
  KeyValueCache,
  type LatentHeads,
  type LayerCache,
  type RecurrentState,
  type RotaryReach,
  type SequenceCache,
  type UnrotatedHeads,
} from './attention.js';
export type { AttentionMasks } from './attention-masks.js';
export type { Gradients, ReplacedGradients } from './backward-hooks.js';
export { type ClipGradNormOptions, clipGradNorm, clipGradValue } from './clip-gradients.js';
export * from './containers.js';
export * from './convolution.js';
export * from './dropout.js';
export * from './embedding.js';
export {
  type ExpertActivation,
  Experts,
  type ExpertsOptions,
  loadBalancingLoss,
  SparseMixture,
  type SparseMixtureOptions,
} from './experts.js';
export { Fp8Linear } from './fp8-linear.js';
export type { Initializer, InitialPart } from './initializers.js';
/** Initial values of parameters. Source: torch.nn.init. */
export * as init from './initializers.js';
export type { Joinable, JoinableLinear, JointProduct } from './joined-linears.js';
export * from './linear.js';
export * from './losses.js';
export {
  type ForwardHook,
  type ForwardPreHook,
  type FullBackwardHook,
  type FullBackwardPreHook,
  Module,
  type NamedModule,
  type StateDictPreHook,
} from './module.js';
export * from './multihead-attention.js';
export * from './norms.js';
export { type PackedLayout, PackedLinear, StoredParameter } from './packed-linear.js';
export { Parameter, type ParameterMemory } from './parameter.js';
export type { PretrainedDescription } from './pretrained-description.js';
export {
  type QuantizedLayout,
  QuantizedLinear,
  type QuantizedOptions,
} from './quantized-linear.js';
export {
  GroupRouter,
  type GroupRouting,
  type RouterLoads,
  SparseMixerRouter,
  type TokenRouter,
  TopKRouter,
  type TopKRouterOptions,
} from './routers.js';
export {
  type SparseAttentionCall,
  SparsePattern,
  SparseSelfAttention,
  type SparseSelfAttentionOptions,
  type SparsityOptions,
  sparseLayout,
  sparsify,
} from './sparse-attention.js';
export { readSparsity, type Sparsity } from './sparse-patterns.js';
export * from './transformer.js';
