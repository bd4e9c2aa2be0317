// Gemma 2: Gemma with norms around the branches, bounded scores and logits, and windows.
import type { FamilyConfig } from '../rotary/config.js';
import { RotaryLM, rotaryFamily } from '../rotary/rotary-lm.js';
import { NORMS_AROUND, type RotaryTraits } from '../rotary/traits.js';

/** Options of Gemma2: sizes, and the mode of its activations. */
export type Gemma2Config = FamilyConfig<'attentionBias' | 'window' | 'scales'>;

const TRAITS: RotaryTraits = {
  name: 'Gemma2',
  modelType: 'gemma2',
  architecture: 'Gemma2ForCausalLM',
  biases: { qkv: 'attentionBias', out: 'attentionBias', mlp: false },
  norm: { offset: true, block: NORMS_AROUND },
  activation: { kind: 'geluTanh', key: 'hidden_activation', names: ['gelu_pytorch_tanh'] },
  window: 'layers',
  windowEvery: [null, 2],
  scales: {
    embed: 'rootChannels',
    scores: { key: 'query_pre_attn_scalar', power: -0.5, fallback: 256 },
    scoreCap: { key: 'attn_logit_softcapping', fallback: 50 },
    logitCap: { key: 'final_logit_softcapping', fallback: 30 },
  },
  defaults: {
    max_position_embeddings: 8192,
    num_key_value_heads: 4,
    head_dim: 256,
    pad_token_id: 0,
    sliding_window: 4096,
    tie_word_embeddings: true,
  },
};

/**
 * Language models published as Gemma 2. Source: Gemma team 2024; transformers' Gemma2ForCausalLM.
 */
export class Gemma2 extends RotaryLM {
  /** Throws DS_ARGUMENT for an unknown option and for invalid sizes. */
  constructor(options: Gemma2Config) {
    super(TRAITS, options);
  }

  /** @internal Describes the family for models.fromPretrained(). */
  static readonly family = rotaryFamily(TRAITS, (config: Gemma2Config) => new Gemma2(config));
}
