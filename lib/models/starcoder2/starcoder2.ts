// StarCoder2: layer norms, biases, and GELU without a gate.
import type { FamilyConfig } from '../rotary/config.js';
import { RotaryLM, rotaryFamily } from '../rotary/rotary-lm.js';
import type { RotaryTraits } from '../rotary/traits.js';

/** Options of Starcoder2: sizes, and the mode of its activations. */
export type Starcoder2Config = FamilyConfig<'attentionBias' | 'window' | 'residualDropout'>;

const TRAITS: RotaryTraits = {
  name: 'Starcoder2',
  modelType: 'starcoder2',
  architecture: 'Starcoder2ForCausalLM',
  biases: { qkv: 'attentionBias', out: 'attentionBias', mlp: 'attentionBias', key: 'use_bias' },
  norm: { kind: 'layer', eps: ['norm_epsilon', 1e-5] },
  activation: { kind: 'geluTanh', names: ['gelu_pytorch_tanh', 'gelu_new'] },
  feed: { first: 'c_fc', second: 'c_proj' },
  window: 'uniform',
  residualDropout: 'residual_dropout',
  only: { embedding_dropout: [0] },
  defaults: {
    vocab_size: 49_152,
    hidden_size: 3072,
    intermediate_size: 12_288,
    num_hidden_layers: 30,
    num_attention_heads: 24,
    max_position_embeddings: 4096,
    num_key_value_heads: 2,
    use_bias: true,
    tie_word_embeddings: true,
  },
};

/**
 * Language models published as StarCoder2. Source: Lozhkov et al. 2024; transformers'
 * Starcoder2ForCausalLM.
 */
export class Starcoder2 extends RotaryLM {
  /** Throws DS_ARGUMENT for an unknown option and for invalid sizes. */
  constructor(options: Starcoder2Config) {
    super(TRAITS, options);
  }

  /** @internal Describes the family for models.fromPretrained(). */
  static readonly family = rotaryFamily(
    TRAITS,
    (config: Starcoder2Config) => new Starcoder2(config),
  );
}
