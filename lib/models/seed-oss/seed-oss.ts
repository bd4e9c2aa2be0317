// Seed-OSS: Llama with biases of queries, keys and values, and dropout of the branches.
import type { FamilyConfig } from '../rotary/config.js';
import { RotaryLM, rotaryFamily } from '../rotary/rotary-lm.js';
import type { RotaryTraits } from '../rotary/traits.js';

/** Options of SeedOss: sizes, and the mode of its activations. */
export type SeedOssConfig = FamilyConfig<'attentionBias' | 'mlpBias' | 'residualDropout'>;

const TRAITS: RotaryTraits = {
  name: 'SeedOss',
  modelType: 'seed_oss',
  architecture: 'SeedOssForCausalLM',
  biases: { qkv: 'attentionBias', out: false, mlp: 'mlpBias' },
  residualDropout: 'residual_dropout',
  window: 'none',
  only: { attention_out_bias: [false] },
  defaults: {
    max_position_embeddings: 524_288,
    num_key_value_heads: 8,
    head_dim: 128,
    pad_token_id: 1,
    attention_bias: true,
    attention_dropout: 0.1,
    residual_dropout: 0.1,
  },
};

/**
 * Language models published as Seed-OSS 36B. Source: ByteDance Seed 2025; transformers'
 * SeedOssForCausalLM.
 */
export class SeedOss extends RotaryLM {
  /** Throws DS_ARGUMENT for an unknown option and for invalid sizes. */
  constructor(options: SeedOssConfig) {
    super(TRAITS, options);
  }

  /** @internal Describes the family for models.fromPretrained(). */
  static readonly family = rotaryFamily(TRAITS, (config: SeedOssConfig) => new SeedOss(config));
}
