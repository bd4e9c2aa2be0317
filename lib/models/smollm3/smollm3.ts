// SmolLM3: Llama in which every fourth layer has no positions.
import type { FamilyConfig } from '../rotary/config.js';
import { RotaryLM, rotaryFamily } from '../rotary/rotary-lm.js';
import { COMMON_ROPE, type RotaryTraits } from '../rotary/traits.js';

/** Options of SmolLM3: sizes, and the mode of its activations. */
export type SmolLM3Config = FamilyConfig<'attentionBias' | 'mlpBias' | 'ropeLayers'>;

const TRAITS: RotaryTraits = {
  name: 'SmolLM3',
  modelType: 'smollm3',
  architecture: 'SmolLM3ForCausalLM',
  biases: { qkv: 'attentionBias', out: 'attentionBias', mlp: 'mlpBias' },
  window: 'none',
  rope: { ...COMMON_ROPE, off: 'listed' },
  defaults: {
    max_position_embeddings: 32_768,
    num_key_value_heads: 4,
    rope_theta: 2_000_000,
    tie_word_embeddings: true,
  },
};

/**
 * Language models published as SmolLM3 3B. Source: Bakouch et al. 2025; transformers'
 * SmolLM3ForCausalLM.
 */
export class SmolLM3 extends RotaryLM {
  /** Throws DS_ARGUMENT for an unknown option and for invalid sizes. */
  constructor(options: SmolLM3Config) {
    super(TRAITS, options);
  }

  /** @internal Describes the family for models.fromPretrained(). */
  static readonly family = rotaryFamily(TRAITS, (config: SmolLM3Config) => new SmolLM3(config));
}
