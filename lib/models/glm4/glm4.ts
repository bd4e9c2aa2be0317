// GLM-4-0414: GLM-4 with further norms after the branches.
import type { FamilyConfig } from '../rotary/config.js';
import { RotaryLM, rotaryFamily } from '../rotary/rotary-lm.js';
import { COMMON_ROPE, type RotaryTraits } from '../rotary/traits.js';

/** Options of Glm4: sizes, and the mode of its activations. */
export type Glm4Config = FamilyConfig<'attentionBias' | 'partialRotaryFactor'>;

const TRAITS: RotaryTraits = {
  name: 'Glm4',
  modelType: 'glm4',
  architecture: 'Glm4ForCausalLM',
  biases: { qkv: 'attentionBias', out: false, mlp: false },
  norm: {
    eps: ['rms_norm_eps', 1.5625e-7],
    block: {
      attention: ['input_layernorm', 'post_self_attn_layernorm'],
      mlp: ['post_attention_layernorm', 'post_mlp_layernorm'],
    },
  },
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
 * Language models published as GLM-4-0414, GLM-Z1. Source: Zhipu AI 2025; transformers'
 * Glm4ForCausalLM.
 */
export class Glm4 extends RotaryLM {
  /** Throws DS_ARGUMENT for an unknown option and for invalid sizes. */
  constructor(options: Glm4Config) {
    super(TRAITS, options);
  }

  /** @internal Describes the family for models.fromPretrained(). */
  static readonly family = rotaryFamily(TRAITS, (config: Glm4Config) => new Glm4(config));
}
