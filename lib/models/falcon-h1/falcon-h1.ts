// Falcon-H1: attention and a state space layer beside each other in each block, with multipliers.
import { BAMBA_FILES } from '../bamba/bamba.js';
import type { FamilyConfig } from '../rotary/config.js';
import { RotaryLM, rotaryFamily } from '../rotary/rotary-lm.js';
import { COMMON_ROPE, type RotaryTraits } from '../rotary/traits.js';

/** Sizes of FalconH1, and the mode of its activations. */
export type FalconH1Config = FamilyConfig<
  'attentionBias' | 'mlpBias' | 'mamba' | 'scales' | 'multipliers'
>;

const TRAITS: RotaryTraits = {
  name: 'FalconH1',
  modelType: 'falcon_h1',
  architecture: 'FalconH1ForCausalLM',
  biases: { qkv: 'attentionBias', out: 'attentionBias', mlp: 'mlpBias' },
  mamba: {
    layers: 'all',
    besideAttention: true,
    normGroups: true,
    choosesNorm: true,
    width: ['mamba_d_ssm', 1024],
    outBias: 'projectors_bias',
  },
  norm: {
    eps: ['rms_norm_eps', 1e-5],
    block: { attention: ['input_layernorm', null], mlp: ['pre_ff_layernorm', null] },
    last: 'final_layernorm',
  },
  window: 'none',
  rope: COMMON_ROPE,
  multipliers: true,
  scales: {
    scores: { key: 'key_multiplier', per: 'rootHead', fallback: 1 },
    embed: { key: 'embedding_multiplier', fallback: 1 },
    logits: { key: 'lm_head_multiplier', fallback: 1 },
  },
  files: BAMBA_FILES,
  defaults: {
    hidden_size: 4096,
    intermediate_size: 14_336,
    num_attention_heads: 32,
    num_key_value_heads: 8,
    max_position_embeddings: 8192,
    pad_token_id: 0,
  },
};

/**
 * Language models published as Falcon-H1. Source: Zuo et al. 2025; transformers'
 * FalconH1ForCausalLM.
 */
export class FalconH1 extends RotaryLM {
  /** Throws DS_ARGUMENT for an unknown option and for invalid sizes. */
  constructor(given: FalconH1Config) {
    super(TRAITS, given);
  }

  /** @internal Describes the family for models.fromPretrained(). */
  static readonly family = rotaryFamily(TRAITS, (config: FalconH1Config) => new FalconH1(config));
}
