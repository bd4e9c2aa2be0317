// StableLM: layer norms, partial rotation, and optionally parallel branches.
import type { FamilyConfig } from '../rotary/config.js';
import { RotaryLM, rotaryFamily } from '../rotary/rotary-lm.js';
import { COMMON_ROPE, ONE_NORM, type RotaryTraits } from '../rotary/traits.js';

/** Options of StableLm: sizes, and the mode of its activations. */
export type StableLmConfig = FamilyConfig<
  'attentionBias' | 'partialRotaryFactor' | 'parallel' | 'residualDropout'
>;

const TRAITS: RotaryTraits = {
  name: 'StableLm',
  modelType: 'stablelm',
  architecture: 'StableLmForCausalLM',
  biases: { qkv: 'attentionBias', out: false, mlp: false, key: 'use_qkv_bias' },
  norm: { kind: 'layer', eps: ['layer_norm_eps', 1e-5] },
  parallel: { key: ['use_parallel_residual', false], block: ONE_NORM },
  window: 'none',
  rope: { ...COMMON_ROPE, partial: true, partialFallback: 0.25 },
  // transformers drops values of the feed-forward block only, which this body does not do.
  only: { qk_layernorm: [false], hidden_dropout: [0] },
  defaults: { max_position_embeddings: 4096, num_key_value_heads: 32 },
};

/**
 * Language models published as StableLM 2, StableLM 3B. Source: Bellagente et al. 2024;
 * transformers' StableLmForCausalLM.
 */
export class StableLm extends RotaryLM {
  /** Throws DS_ARGUMENT for an unknown option and for invalid sizes. */
  constructor(options: StableLmConfig) {
    super(TRAITS, options);
  }

  /** @internal Describes the family for models.fromPretrained(). */
  static readonly family = rotaryFamily(TRAITS, (config: StableLmConfig) => new StableLm(config));
}
