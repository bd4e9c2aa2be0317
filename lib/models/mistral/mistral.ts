// Mistral: Llama without biases; its first version has a sliding window.
import { type FolderOptions, readPretrained } from '../model-folder.js';
import type { RotaryConfig, RotaryOptions, RotaryTraits } from '../rotary/config.js';
import { RotaryLM, rotaryFamily } from '../rotary/rotary-lm.js';

/** The sizes of a Mistral, and how its activations are kept. */
export type MistralConfig = Omit<RotaryConfig, 'attentionBias' | 'mlpBias'>;

const TRAITS: RotaryTraits = {
  name: 'Mistral',
  modelType: 'mistral',
  architecture: 'MistralForCausalLM',
  biases: { qkv: false, out: false, mlp: false },
  qkNorm: false,
  window: 'uniform',
  defaults: { max_position_embeddings: 131_072, num_key_value_heads: 8, sliding_window: 4096 },
};

/** Source: Jiang et al. 2023; transformers' MistralForCausalLM. */
export class Mistral extends RotaryLM {
  /** Throws DS_ARGUMENT for an unknown option and for invalid sizes. */
  constructor(given: MistralConfig) {
    super(TRAITS, given);
  }

  /** @internal How folders of Hugging Face's become Mistrals. */
  static readonly family = rotaryFamily(TRAITS, (config: MistralConfig) => new Mistral(config));

  /** models.fromPretrained() of a folder that holds a Mistral; another is DS_CHECKPOINT. */
  static fromPretrained(
    dir: string,
    options: RotaryOptions & FolderOptions = {},
  ): Promise<Mistral> {
    return readPretrained(dir, [Mistral.family], options);
  }
}
