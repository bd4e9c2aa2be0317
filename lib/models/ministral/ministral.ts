// Ministral 8B: Mistral with a window by layer.
import type { FamilyConfig } from '../rotary/config.js';
import { RotaryLM, rotaryFamily } from '../rotary/rotary-lm.js';
import type { RotaryTraits } from '../rotary/traits.js';

/** Options of Ministral: sizes, and the mode of its activations. */
export type MinistralConfig = FamilyConfig<'window'>;

const TRAITS: RotaryTraits = {
  name: 'Ministral',
  modelType: 'ministral',
  architecture: 'MinistralForCausalLM',
  biases: { qkv: false, out: false, mlp: false },
  window: 'layers',
  slidesAt: () => true,
  unswitched: true,
  defaults: { max_position_embeddings: 131_072, num_key_value_heads: 8, sliding_window: 4096 },
};

/**
 * Language models published as Ministral 8B. Source: Mistral AI 2024; transformers'
 * MinistralForCausalLM.
 */
export class Ministral extends RotaryLM {
  /** Throws DS_ARGUMENT for an unknown option and for invalid sizes. */
  constructor(options: MinistralConfig) {
    super(TRAITS, options);
  }

  /** @internal Describes the family for models.fromPretrained(). */
  static readonly family = rotaryFamily(TRAITS, (config: MinistralConfig) => new Ministral(config));
}
