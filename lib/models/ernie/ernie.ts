// ERNIE 4.5, dense: Llama with pairs of neighbouring channels.
import type { FamilyConfig } from '../rotary/config.js';
import { RotaryLM, rotaryFamily } from '../rotary/rotary-lm.js';
import { COMMON_ROPE, type RotaryTraits } from '../rotary/traits.js';

/** Options of Ernie45: sizes, and the mode of its activations. */
export type Ernie45Config = FamilyConfig<'attentionBias'>;

const TRAITS: RotaryTraits = {
  name: 'Ernie45',
  modelType: 'ernie4_5',
  architecture: 'Ernie4_5ForCausalLM',
  biases: { qkv: 'attentionBias', out: 'attentionBias', mlp: 'attentionBias', key: 'use_bias' },
  norm: { eps: ['rms_norm_eps', 1e-5] },
  window: 'none',
  rope: { ...COMMON_ROPE, interleaved: true },
  defaults: {
    max_position_embeddings: 131_072,
    num_key_value_heads: 2,
    head_dim: 128,
    pad_token_id: 0,
    rope_theta: 500_000,
    tie_word_embeddings: true,
  },
};

/**
 * Language models published as ERNIE 4.5 0.3B. Source: Baidu 2025; transformers'
 * Ernie4_5ForCausalLM.
 */
export class Ernie45 extends RotaryLM {
  /** Throws DS_ARGUMENT for an unknown option and for invalid sizes. */
  constructor(options: Ernie45Config) {
    super(TRAITS, options);
  }

  /** @internal Describes the family for models.fromPretrained(). */
  static readonly family = rotaryFamily(TRAITS, (config: Ernie45Config) => new Ernie45(config));
}
