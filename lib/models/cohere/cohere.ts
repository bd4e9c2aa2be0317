// Cohere Command R: parallel branches, layer norms without biases, scaled logits.
import type { FamilyConfig } from '../rotary/config.js';
import { RotaryLM, rotaryFamily } from '../rotary/rotary-lm.js';
import { COMMON_ROPE, ONE_NORM, type RotaryTraits } from '../rotary/traits.js';

/** Options of Cohere: sizes, and the mode of its activations. */
export type CohereConfig = FamilyConfig<'attentionBias' | 'scales'>;

const TRAITS: RotaryTraits = {
  name: 'Cohere',
  modelType: 'cohere',
  architecture: 'CohereForCausalLM',
  biases: { qkv: 'attentionBias', out: 'attentionBias', mlp: false },
  norm: { kind: 'layerNoBias', eps: ['layer_norm_eps', 1e-5] },
  parallel: { key: null, block: ONE_NORM },
  window: 'none',
  rope: { ...COMMON_ROPE, interleaved: true },
  scales: { logits: { key: 'logit_scale', fallback: 0.0625 } },
  only: { use_qk_norm: [false] },
  defaults: {
    vocab_size: 256_000,
    hidden_size: 8192,
    intermediate_size: 22_528,
    num_hidden_layers: 40,
    num_attention_heads: 64,
    max_position_embeddings: 8192,
    pad_token_id: 0,
    rope_theta: 500_000,
    tie_word_embeddings: true,
  },
};

/** Language models published as Command R. Source: Cohere 2024; transformers' CohereForCausalLM. */
export class Cohere extends RotaryLM {
  /** Throws DS_ARGUMENT for an unknown option and for invalid sizes. */
  constructor(options: CohereConfig) {
    super(TRAITS, options);
  }

  /** @internal Describes the family for models.fromPretrained(). */
  static readonly family = rotaryFamily(TRAITS, (config: CohereConfig) => new Cohere(config));
}
