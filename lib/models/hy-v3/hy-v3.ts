// Hy3: head norms, and a router with sigmoid scores.
import type { FamilyConfig } from '../rotary/config.js';
import { type MoeConfig, QWEN_FILES } from '../rotary/mixture.js';
import { RotaryLM, rotaryFamily } from '../rotary/rotary-lm.js';
import type { RotaryTraits } from '../rotary/traits.js';

/** Options of HyV3: sizes, and the mode of its activations. */
export interface HyV3Config extends FamilyConfig<'attentionBias'> {
  /** The experts, including the shared ones. */
  moe: MoeConfig & { sharedHidden: number };
}

const TRAITS: RotaryTraits = {
  name: 'HyV3',
  modelType: 'hy_v3',
  architecture: 'HYV3ForCausalLM',
  biases: { qkv: 'attentionBias', out: 'attentionBias', mlp: false },
  qkNorm: 'head',
  norm: { eps: ['rms_norm_eps', 1e-5] },
  hasPredictors: true,
  window: 'none',
  moe: {
    experts: ['num_experts', 192],
    perToken: 8,
    hidden: 'moe_intermediate_size',
    shared: 'ungated',
    choosesNorm: false,
    choosesLayers: 'first',
    listsLayers: true,
    scores: 'sigmoid',
    files: { ...QWEN_FILES, choiceBias: 'expert_bias' },
  },
  files: {
    'model.layers.*.mlp.gate.weight': 'model.layers.*.mlp.router.gate.weight',
    ...Object.fromEntries(
      ['gate_proj', 'up_proj', 'down_proj'].map((name) => [
        `model.layers.*.mlp.shared_experts.${name}.weight`,
        `model.layers.*.mlp.shared_mlp.${name}.weight`,
      ]),
    ),
  },
  keys: { n_shared_experts: 'num_shared_experts', routed_scaling_factor: 'router_scaling_factor' },
  only: { mlp_bias: [false] },
  defaults: {
    max_position_embeddings: 131_072,
    num_key_value_heads: 8,
    head_dim: 128,
    rope_theta: 11_158_840,
    intermediate_size: 13_312,
    moe_intermediate_size: 1536,
    n_shared_experts: 1,
    first_k_dense_replace: 1,
    routed_scaling_factor: 2.826,
    initializer_range: 0.006,
  },
};

/**
 * Language models published as Hy3. Source: Tencent 2026; transformers' HYV3ForCausalLM.
 */
export class HyV3 extends RotaryLM {
  /** Throws DS_ARGUMENT for an unknown option and for invalid sizes. */
  constructor(options: HyV3Config) {
    super(TRAITS, options);
  }

  /** @internal Describes the family for models.fromPretrained(). */
  static readonly family = rotaryFamily(TRAITS, (config: HyV3Config) => new HyV3(config));
}
