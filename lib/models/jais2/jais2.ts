// Jais 2: layer norms, biases, and squared ReLU without a gate.
import type { FamilyConfig } from '../rotary/config.js';
import { RotaryLM, rotaryFamily } from '../rotary/rotary-lm.js';
import type { RotaryTraits } from '../rotary/traits.js';

/** Options of Jais2: sizes, and the mode of its activations. */
export type Jais2Config = FamilyConfig<'attentionBias' | 'mlpBias'>;

const TRAITS: RotaryTraits = {
  name: 'Jais2',
  modelType: 'jais2',
  architecture: 'Jais2ForCausalLM',
  biases: { qkv: 'attentionBias', out: 'attentionBias', mlp: 'mlpBias' },
  norm: { kind: 'layer', eps: ['layer_norm_eps', 1e-5] },
  activation: { kind: 'relu2', names: ['relu2'] },
  feed: { first: 'up_proj', second: 'down_proj' },
  window: 'none',
  defaults: {
    max_position_embeddings: 8192,
    intermediate_size: 26_624,
    attention_bias: true,
    mlp_bias: true,
  },
};

/**
 * Language models published as Jais 2 8B, 70B. Source: Inception 2025; transformers'
 * Jais2ForCausalLM.
 */
export class Jais2 extends RotaryLM {
  /** Throws DS_ARGUMENT for an unknown option and for invalid sizes. */
  constructor(options: Jais2Config) {
    super(TRAITS, options);
  }

  /** @internal Describes the family for models.fromPretrained(). */
  static readonly family = rotaryFamily(TRAITS, (config: Jais2Config) => new Jais2(config));
}
