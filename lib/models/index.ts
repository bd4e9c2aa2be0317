// Complete models.

export type { GenerateOptions } from './generate.js';
export {
  type ActivationBytes,
  type ActivationMode,
  gpt2ActivationBytes,
} from './gpt2/activations.js';
export {
  GPT2,
  GPT2Block,
  type GPT2Config,
  type GPT2Sizes,
  type Mlp,
  type TiedHead,
  type Transformer,
} from './gpt2/gpt2.js';
export { gpt2HuggingFaceNames, type HuggingFaceName } from './gpt2/names.js';
