// Complete models.
export {
  type CausalConfig,
  type CausalInputs,
  CausalLM,
  type CausalLossOptions,
  type LanguageHead,
} from './causal-lm.js';
export { fromPretrained, type PretrainedOptions } from './from-pretrained.js';
export { type CausalModel, type Decoder, type GenerateOptions, generate } from './generate.js';
export {
  type ActivationBytes,
  type ActivationMode,
  gpt2ActivationBytes,
} from './gpt2/activations.js';
export type { GPT2Config, GPT2Options, GPT2Sizes } from './gpt2/config.js';
export { GPT2, GPT2Block, type Mlp, type Transformer } from './gpt2/gpt2.js';
export { gpt2HuggingFaceNames, type HuggingFaceName } from './gpt2/pretrained.js';
export type { LlamaConfig, LlamaOptions, LlamaSizes } from './llama/config.js';
export { Llama, type LlamaAttention, LlamaBlock, type LlamaModel } from './llama/llama.js';
export type { RopeScaling } from './llama/rotary.js';
export type { TiedHead } from './tied-head.js';
