// GLM-4 of the first release: pairs of neighbouring channels, half of a head rotated.
import type { FamilyConfig } from '../rotary/config.js';
import { RotaryLM, rotaryFamily } from '../rotary/rotary-lm.js';
import { COMMON_ROPE, type RotaryTraits } from '../rotary/traits.js';

/** Options of Glm: sizes, and the mode of its activations. */
export type GlmConfig = FamilyConfig<'attentionBias' | 'partialRotaryFactor'>;

const TRAITS: RotaryTraits = {
  name: 'Glm',
  modelType: 'glm',
  architecture: 'GlmForCausalLM',
  biases: { qkv: 'attentionBias', out: false, mlp: false },
  norm: { eps: ['rms_norm_eps', 1.5625e-7] },
  feed: 'packed',
  window: 'none',
  rope: { ...COMMON_ROPE, partial: true, partialFallback: 0.5, interleaved: true },
  defaults: {
    max_position_embeddings: 131_072,
    num_key_value_heads: 2,
    head_dim: 128,
    attention_bias: true,
  },
};

/**
 * Language models published as GLM-4-9B-hf, GLM-Edge. Source: Zeng et al. 2024; transformers'
 * GlmForCausalLM.
 */
export class Glm extends RotaryLM {
  /** Throws DS_ARGUMENT for an unknown option and for invalid sizes. */
  constructor(options: GlmConfig) {
    super(TRAITS, options);
  }

  /** @internal Describes the family for models.fromPretrained(). */
  static readonly family = rotaryFamily(TRAITS, (config: GlmConfig) => new Glm(config));
}
