// Nemotron-H: each block is a state space layer, attention without positions, a feed-forward block
// or a mixture of experts.
import type { FamilyConfig } from '../rotary/config.js';
import { RotaryLM, rotaryFamily } from '../rotary/rotary-lm.js';
import { COMMON_ROPE, type RotaryTraits } from '../rotary/traits.js';

/** Sizes of NemotronH, and the mode of its activations. */
export type NemotronHConfig = FamilyConfig<
  'attentionBias' | 'mlpBias' | 'mamba' | 'feedLayers' | 'moe'
>;

const TRAITS: RotaryTraits = {
  name: 'NemotronH',
  modelType: 'nemotron_h',
  architecture: 'NemotronHForCausalLM',
  biases: { qkv: 'attentionBias', out: 'attentionBias', mlp: 'mlpBias' },
  mamba: {
    layers: 'layers_block_type',
    normGroups: true,
    least: ['time_step_min', 0.001],
    anyWidth: true,
  },
  oneBranch: true,
  norm: {
    eps: ['layer_norm_epsilon', 1e-5],
    block: { attention: ['norm', null], mlp: [null, null] },
    last: 'norm_f',
  },
  window: 'none',
  rope: { ...COMMON_ROPE, off: 'all' },
  feed: { first: 'up_proj', second: 'down_proj' },
  activation: { kind: 'relu2', key: 'mlp_hidden_act', names: ['relu2'] },
  moe: {
    experts: ['n_routed_experts', 8],
    perToken: 2,
    hidden: 'moe_intermediate_size',
    shared: 'plain',
    choosesNorm: true,
    choosesLayers: 'branches',
    scores: 'sigmoid',
    activation: 'relu2',
    latent: 'moe_latent_size',
    files: { block: 'mixer', gate: null, up: 'up_proj', down: 'down_proj' },
  },
  names: { model: 'backbone', embed: 'embeddings', attention: 'mixer' },
  keys: {
    mamba_n_heads: 'mamba_num_heads',
    mamba_d_head: 'mamba_head_dim',
    mamba_n_groups: 'n_groups',
    mamba_d_state: 'ssm_state_size',
    mamba_d_conv: 'conv_kernel',
    mamba_conv_bias: 'use_conv_bias',
    mamba_proj_bias: 'use_bias',
  },
  others: {
    n_groups: 'mamba_n_groups',
    conv_kernel: 'mamba_d_conv',
    use_conv_bias: 'mamba_conv_bias',
    time_step_min: 'mamba_dt_min',
  },
  hasPredictors: 'apart',
  only: { mamba_hidden_act: ['silu'], sliding_window: [null] },
  defaults: {
    max_position_embeddings: 4096,
    num_key_value_heads: 8,
    num_attention_heads: 32,
    head_dim: 128,
    intermediate_size: 21_504,
    mamba_d_head: 64,
    mamba_n_groups: 8,
    mamba_d_state: 128,
    moe_intermediate_size: 7688,
    moe_shared_expert_intermediate_size: 7688,
    norm_topk_prob: true,
    pad_token_id: 0,
  },
};

/**
 * Language models published as Nemotron-H, Nemotron Nano 2, and Nemotron 3 Nano and Super. Source:
 * NVIDIA 2025; transformers' NemotronHForCausalLM.
 */
export class NemotronH extends RotaryLM {
  /** Throws DS_ARGUMENT for an unknown option and for invalid sizes. */
  constructor(given: NemotronHConfig) {
    super(TRAITS, given);
  }

  /** @internal Describes the family for models.fromPretrained(). */
  static readonly family = rotaryFamily(TRAITS, (config: NemotronHConfig) => new NemotronH(config));
}
