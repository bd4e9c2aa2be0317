// Public API of lib/models: model classes, and loading and saving of weights.
export {
  type CausalConfig,
  type CausalInputs,
  CausalLM,
  type CausalLossOptions,
} from './causal-lm.js';
export type { EncoderConfig, EncoderOptions, EncoderSizes } from './encoder/config.js';
export { EncoderModel } from './encoder/encoder-model.js';
export * from './encoders.js';
export * from './families.js';
export {
  fromConfig,
  fromPretrained,
  fromPretrainedCut,
  layoutOf,
  type PretrainedOptions,
  type TaskPretrainedOptions,
} from './from-pretrained.js';
export { type CausalModel, type Decoder, type GenerateOptions, generate } from './generate.js';
export { type GgufType, type SaveGgufOptions, saveGguf } from './gguf/save.js';
export {
  type ActivationBytes,
  type ActivationMode,
  gpt2ActivationBytes,
} from './gpt2/activations.js';
export type { GPT2Config, GPT2Options, GPT2Sizes } from './gpt2/config.js';
export { GPT2Block, type Mlp, type Transformer } from './gpt2/gpt2.js';
export { gpt2HuggingFaceNames, type HuggingFaceName } from './gpt2/pretrained.js';
export type { LanguageHead } from './language-head.js';
export type { FolderOptions } from './model-folder.js';
export type { NormalizedHead } from './normalized-head.js';
export type { PlaceInputs, Places } from './places.js';
export type { AltUpConfig, AltUpSizes } from './rotary/alt-up-config.js';
export type {
  AttentionContext,
  GatedAttention,
  RotaryAttention,
} from './rotary/attention.js';
export { RotaryBlock } from './rotary/block.js';
export type { RotaryModel } from './rotary/body.js';
export type { QueryScale } from './rotary/chunk-options.js';
export type {
  FamilyConfig,
  FamilyOption,
  LatentSizes,
  RotaryConfig,
  RotaryOptions,
  RotarySizes,
  Window,
} from './rotary/config.js';
export type { ConvSizes } from './rotary/conv-config.js';
export type { DeltaSizes } from './rotary/delta-config.js';
export type { ConvWeights, GatedDeltaNet } from './rotary/delta-net.js';
export type { FeedForward, GatedMlp, PlainMlp } from './rotary/feed-forward.js';
export type { FullHeads, SharedKeys } from './rotary/kind-options.js';
export type { BlockAttention, LatentAttention } from './rotary/latent-attention.js';
export type { LayeredAttention } from './rotary/layered-attention.js';
export type { MambaConfig, MambaSizes } from './rotary/mamba-config.js';
export type { GatedNorm, MambaMixer } from './rotary/mamba-mixer.js';
export type { MoeConfig, MoeSizes } from './rotary/mixture.js';
export type { AllMultipliers, Multipliers } from './rotary/multipliers.js';
export type { Norm, OffsetLayerNorm, OffsetRMSNorm, PlainLayerNorm } from './rotary/norms.js';
export type { PackedAttention, PerHeadAttention } from './rotary/packed-attention.js';
export type { PackedSwiGLU } from './rotary/packed-swiglu.js';
export type {
  DynamicScaling,
  LinearScaling,
  Llama3Scaling,
  LongRopeScaling,
  ProportionalScaling,
  RopeScaling,
  YarnScaling,
} from './rotary/rope-scaling.js';
export { RotaryLM } from './rotary/rotary-lm.js';
export type { Angles } from './rotary/rotary-table.js';
export type { Scales } from './rotary/scales.js';
export type { ShortConvolution } from './rotary/short-convolution.js';
export type { Classification, ClassifyOptions } from './tasks/classification.js';
export {
  cosineLoss,
  cosineSimilarity,
  multipleNegativesRanking,
  tripletLoss,
} from './tasks/contrastive.js';
export type { TaskLabels, TaskLossOptions } from './tasks/losses.js';
export type { Pooling, PoolingMode } from './tasks/pooling.js';
export type { HeadTask, LabelOptions, ProblemType, Task } from './tasks/task.js';
export {
  type EmbedOptions,
  type TaskInputs,
  TaskModel,
  type TaskSizes,
} from './tasks/task-model.js';
export type { TiedHead } from './tied-head.js';
export type { LayerTokens } from './token-drop.js';
export type { TokenLogProbOptions } from './token-log-probs.js';
