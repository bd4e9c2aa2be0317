// Mamba-2: state space layers only.
import type { FamilyConfig } from '../rotary/config.js';
import { RotaryLM, rotaryFamily } from '../rotary/rotary-lm.js';
import { COMMON_ROPE, type RotaryTraits } from '../rotary/traits.js';

/** Sizes of Mamba2, and the mode of its activations. Sizes of attention have no effect. */
export type Mamba2Config = FamilyConfig<'mamba' | 'feedLayers'>;

const TRAITS: RotaryTraits = {
  name: 'Mamba2',
  modelType: 'mamba2',
  architecture: 'Mamba2ForCausalLM',
  biases: { qkv: false, out: false, mlp: false },
  mamba: { layers: 'all' },
  oneBranch: true,
  norm: {
    eps: ['layer_norm_epsilon', 1e-5],
    block: { attention: ['norm', null], mlp: [null, null] },
    last: 'norm_f',
  },
  window: 'none',
  rope: { ...COMMON_ROPE, off: 'all' },
  names: { model: 'backbone', embed: 'embeddings', attention: 'mixer' },
  keys: {
    head_dim: 'attention_head_dim',
    mamba_n_heads: 'num_heads',
    mamba_d_head: 'head_dim',
    mamba_n_groups: 'n_groups',
    mamba_d_state: 'state_size',
    mamba_d_conv: 'conv_kernel',
    mamba_conv_bias: 'use_conv_bias',
    mamba_proj_bias: 'use_bias',
    mamba_expand: 'expand',
  },
  defaults: {
    // Its texts may have any length.
    max_position_embeddings: 1_048_576,
    num_attention_heads: 1,
    intermediate_size: 1,
    mamba_d_head: 64,
    mamba_n_groups: 8,
    mamba_d_state: 128,
    pad_token_id: 1,
  },
};

/**
 * Language models published as Mamba 2. Source: Dao and Gu 2024; transformers' Mamba2ForCausalLM.
 */
export class Mamba2 extends RotaryLM {
  /** Throws DS_ARGUMENT for an unknown option and for invalid sizes. */
  constructor(given: Mamba2Config) {
    super(TRAITS, given);
  }

  /** @internal Describes the family for models.fromPretrained(). */
  static readonly family = rotaryFamily(TRAITS, (config: Mamba2Config) => new Mamba2(config));
}
