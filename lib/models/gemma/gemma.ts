// Gemma: norms by 1 + weight, a scaled embedding and a GELU gate.
import type { FamilyConfig } from '../rotary/config.js';
import { RotaryLM, rotaryFamily } from '../rotary/rotary-lm.js';
import type { RotaryTraits } from '../rotary/traits.js';

/** Options of Gemma: sizes, and the mode of its activations. */
export type GemmaConfig = FamilyConfig<'attentionBias'>;

const TRAITS: RotaryTraits = {
  name: 'Gemma',
  modelType: 'gemma',
  architecture: 'GemmaForCausalLM',
  biases: { qkv: 'attentionBias', out: 'attentionBias', mlp: false },
  norm: { offset: true },
  // Old files say "gelu" or nothing; transformers always computes the approximation by tanh.
  activation: { kind: 'geluTanh', names: ['gelu_pytorch_tanh', 'gelu'] },
  window: 'none',
  scales: { embed: 'rootChannels' },
  only: { hidden_activation: ['gelu_pytorch_tanh'] },
  defaults: {
    max_position_embeddings: 8192,
    num_key_value_heads: 16,
    head_dim: 256,
    pad_token_id: 0,
    tie_word_embeddings: true,
  },
};

/**
 * Language models published as Gemma 2B, 7B, CodeGemma. Source: Gemma team 2024; transformers'
 * GemmaForCausalLM.
 */
export class Gemma extends RotaryLM {
  /** Throws DS_ARGUMENT for an unknown option and for invalid sizes. */
  constructor(options: GemmaConfig) {
    super(TRAITS, options);
  }

  /** @internal Describes the family for models.fromPretrained(). */
  static readonly family = rotaryFamily(TRAITS, (config: GemmaConfig) => new Gemma(config));
}
