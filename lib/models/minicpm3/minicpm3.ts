// MiniCPM3: latent attention without experts, and MiniCPM's scales.
import type { FamilyConfig } from '../rotary/config.js';
import { RotaryLM, rotaryFamily } from '../rotary/rotary-lm.js';
import type { RotaryTraits } from '../rotary/traits.js';

/** Options of MiniCpm3: sizes, and the mode of its activations. */
export type MiniCpm3Config = FamilyConfig<'attentionBias' | 'latent' | 'scales'>;

const TRAITS: RotaryTraits = {
  name: 'MiniCpm3',
  modelType: 'minicpm3',
  architecture: 'MiniCPM3ForCausalLM',
  biases: { qkv: 'attentionBias', out: 'attentionBias', mlp: false },
  latent: true,
  norm: { eps: ['rms_norm_eps', 1e-5] },
  window: 'none',
  scales: {
    embed: { key: 'scale_emb', fallback: 12 },
    residual: { key: 'scale_depth', per: 'rootLayers', fallback: 1.4 },
    logits: { key: 'dim_model_base', per: 'channels', fallback: 256 },
  },
  only: { mlp_bias: [false] },
  defaults: {
    max_position_embeddings: 32_768,
    num_attention_heads: 40,
    q_lora_rank: 768,
    kv_lora_rank: 256,
    qk_nope_head_dim: 64,
    qk_rope_head_dim: 32,
    intermediate_size: 6400,
    initializer_range: 0.1,
    tie_word_embeddings: true,
  },
};

/**
 * Language models published as MiniCPM3 4B. Source: Hu et al. 2024; transformers'
 * MiniCPM3ForCausalLM.
 */
export class MiniCpm3 extends RotaryLM {
  /** Throws DS_ARGUMENT for an unknown option and for invalid sizes. */
  constructor(options: MiniCpm3Config) {
    super(TRAITS, options);
  }

  /** @internal Describes the family for models.fromPretrained(). */
  static readonly family = rotaryFamily(TRAITS, (config: MiniCpm3Config) => new MiniCpm3(config));
}
