// Trinity: gated attention, norms around branches, windows, a router with sigmoid scores.
import type { FamilyConfig } from '../rotary/config.js';
import { type MoeConfig, QWEN_FILES } from '../rotary/mixture.js';
import { RotaryLM, rotaryFamily } from '../rotary/rotary-lm.js';
import { COMMON_ROPE, type RotaryTraits } from '../rotary/traits.js';

/** Sizes of Afmoe, and the mode of its activations. */
export interface AfmoeConfig extends FamilyConfig<'window'> {
  /** The experts, including the shared ones. */
  moe: MoeConfig & { sharedHidden: number };
}

const TRAITS: RotaryTraits = {
  name: 'Afmoe',
  modelType: 'afmoe',
  architecture: 'AfmoeForCausalLM',
  biases: { qkv: false, out: false, mlp: false },
  qkNorm: 'head',
  gated: 'apart',
  norm: {
    eps: ['rms_norm_eps', 1e-5],
    block: {
      attention: ['input_layernorm', 'post_attention_layernorm'],
      mlp: ['pre_mlp_layernorm', 'post_mlp_layernorm'],
    },
  },
  window: 'layers',
  windowEvery: ['global_attn_every_n_layers', 4],
  rope: { ...COMMON_ROPE, off: 'unwindowed' },
  scales: { embed: 'rootChannels' },
  moe: {
    experts: ['num_experts', 64],
    perToken: 6,
    hidden: 'moe_intermediate_size',
    shared: 'ungated',
    choosesNorm: false,
    choosesLayers: 'first',
    scores: 'sigmoid',
    files: { ...QWEN_FILES, choiceBias: 'expert_bias' },
  },
  files: { 'model.layers.*.mlp.gate.weight': 'model.layers.*.mlp.router.gate.weight' },
  keys: {
    n_shared_experts: 'num_shared_experts',
    first_k_dense_replace: 'num_dense_layers',
    routed_scaling_factor: 'route_scale',
  },
  only: { attention_bias: [false], mup_enabled: [true], score_func: ['sigmoid'] },
  written: { mup_enabled: true },
  defaults: {
    max_position_embeddings: 16_384,
    head_dim: 128,
    sliding_window: 1024,
    intermediate_size: 6144,
    moe_intermediate_size: 1408,
    n_shared_experts: 2,
    first_k_dense_replace: 1,
    mup_enabled: false,
  },
};

/**
 * Language models published as Trinity Nano, Mini, Large. Source: Arcee AI 2025; transformers'
 * AfmoeForCausalLM.
 */
export class Afmoe extends RotaryLM {
  /** Throws DS_ARGUMENT for an unknown option and for invalid sizes. */
  constructor(given: AfmoeConfig) {
    super(TRAITS, given);
  }

  /** @internal Describes the family for models.fromPretrained(). */
  static readonly family = rotaryFamily(TRAITS, (config: AfmoeConfig) => new Afmoe(config));
}
