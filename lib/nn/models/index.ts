// Complete models.
export {
  GPT2,
  GPT2Block,
  type GPT2Config,
  type GPT2Sizes,
  type Mlp,
  type TiedHead,
  type Transformer,
} from './gpt2.js';
export {
  type ActivationBytes,
  type ActivationMode,
  gpt2ActivationBytes,
} from './gpt2-activations.js';
export type { GenerateOptions } from './gpt2-generate.js';
export { gpt2HuggingFaceNames, type HuggingFaceName } from './gpt2-names.js';
