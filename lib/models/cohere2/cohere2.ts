// Cohere Command R7B and A: Command R with windows, and no positions in other layers.
import type { FamilyConfig } from '../rotary/config.js';
import { RotaryLM, rotaryFamily } from '../rotary/rotary-lm.js';
import { COMMON_ROPE, ONE_NORM, type RotaryTraits } from '../rotary/traits.js';

/** Options of Cohere2: sizes, and the mode of its activations. */
export type Cohere2Config = FamilyConfig<'attentionBias' | 'window' | 'scales'>;

const TRAITS: RotaryTraits = {
  name: 'Cohere2',
  modelType: 'cohere2',
  architecture: 'Cohere2ForCausalLM',
  biases: { qkv: 'attentionBias', out: 'attentionBias', mlp: false },
  norm: { kind: 'layerNoBias', eps: ['layer_norm_eps', 1e-5] },
  parallel: { key: null, block: ONE_NORM },
  window: 'layers',
  windowEvery: ['sliding_window_pattern', 4],
  rope: { ...COMMON_ROPE, interleaved: true, off: 'unwindowed' },
  scales: { logits: { key: 'logit_scale', fallback: 0.0625 } },
  defaults: {
    vocab_size: 256_000,
    hidden_size: 8192,
    intermediate_size: 22_528,
    num_hidden_layers: 40,
    num_attention_heads: 64,
    max_position_embeddings: 8192,
    pad_token_id: 0,
    sliding_window: 4096,
    tie_word_embeddings: true,
  },
};

/**
 * Language models published as Command R7B, Command A. Source: Cohere 2024; transformers'
 * Cohere2ForCausalLM.
 */
export class Cohere2 extends RotaryLM {
  /** Throws DS_ARGUMENT for an unknown option and for invalid sizes. */
  constructor(options: Cohere2Config) {
    super(TRAITS, options);
  }

  /** @internal Describes the family for models.fromPretrained(). */
  static readonly family = rotaryFamily(TRAITS, (config: Cohere2Config) => new Cohere2(config));
}
