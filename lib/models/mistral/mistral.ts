// Mistral: Llama without biases; its first version has a sliding window.
import type { FamilyConfig } from '../rotary/config.js';
import { RotaryLM, rotaryFamily } from '../rotary/rotary-lm.js';
import { AROUND_TEXT, type RotaryTraits } from '../rotary/traits.js';

/** Options of Mistral: sizes, and the mode of its activations. */
export type MistralConfig = FamilyConfig<'window'>;

const TRAITS: RotaryTraits = {
  name: 'Mistral',
  modelType: 'mistral',
  textOf: ['mistral3', ...AROUND_TEXT],
  architecture: 'MistralForCausalLM',
  biases: { qkv: false, out: false, mlp: false },
  window: 'uniform',
  defaults: { max_position_embeddings: 131_072, num_key_value_heads: 8, sliding_window: 4096 },
};

/**
 * Language models published as Mistral 7B, Nemo, Small. Source: Jiang et al. 2023; transformers'
 * MistralForCausalLM.
 */
export class Mistral extends RotaryLM {
  /** Throws DS_ARGUMENT for an unknown option and for invalid sizes. */
  constructor(options: MistralConfig) {
    super(TRAITS, options);
  }

  /** @internal Describes the family for models.fromPretrained(). */
  static readonly family = rotaryFamily(TRAITS, (config: MistralConfig) => new Mistral(config));
}
