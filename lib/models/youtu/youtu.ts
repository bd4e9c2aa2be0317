// Youtu-LLM: latent attention without experts.
import type { FamilyConfig } from '../rotary/config.js';
import { RotaryLM, rotaryFamily } from '../rotary/rotary-lm.js';
import { COMMON_ROPE, type RotaryTraits } from '../rotary/traits.js';

/** Options of Youtu: sizes, and the mode of its activations. */
export type YoutuConfig = FamilyConfig<'attentionBias' | 'latent'>;

const TRAITS: RotaryTraits = {
  name: 'Youtu',
  modelType: 'youtu',
  // The name of the published folders.
  alsoTypes: { youtu_llm: {} },
  architecture: 'YoutuForCausalLM',
  biases: { qkv: 'attentionBias', out: 'attentionBias', mlp: false },
  latent: true,
  window: 'none',
  rope: { ...COMMON_ROPE, interleaved: true },
  only: { rope_interleave: [true], mlp_bias: [false] },
  defaults: {
    max_position_embeddings: 131_072,
    num_attention_heads: 16,
    q_lora_rank: 1536,
    kv_lora_rank: 512,
    qk_nope_head_dim: 128,
    qk_rope_head_dim: 64,
    v_head_dim: 128,
    intermediate_size: 6144,
    tie_word_embeddings: true,
  },
};

/**
 * Language models published as Youtu-LLM 2B. Source: Tencent 2025; transformers' YoutuForCausalLM.
 */
export class Youtu extends RotaryLM {
  /** Throws DS_ARGUMENT for an unknown option and for invalid sizes. */
  constructor(options: YoutuConfig) {
    super(TRAITS, options);
  }

  /** @internal Describes the family for models.fromPretrained(). */
  static readonly family = rotaryFamily(TRAITS, (config: YoutuConfig) => new Youtu(config));
}
