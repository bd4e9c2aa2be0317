// Hunyuan A13B: head norms after the rotation, and experts beside a shared one.
import type { FamilyConfig } from '../rotary/config.js';
import { type MoeConfig, QWEN_FILES } from '../rotary/mixture.js';
import { RotaryLM, rotaryFamily } from '../rotary/rotary-lm.js';
import { COMMON_ROPE, type RotaryTraits } from '../rotary/traits.js';

/** Options of HunYuanMoe: sizes, and the mode of its activations. */
export interface HunYuanMoeConfig extends FamilyConfig<'attentionBias'> {
  /** The experts, including the shared ones. */
  moe: MoeConfig & { sharedHidden: number };
}

const TRAITS: RotaryTraits = {
  name: 'HunYuanMoe',
  modelType: 'hunyuan_v1_moe',
  architecture: 'HunYuanMoEV1ForCausalLM',
  biases: { qkv: 'attentionBias', out: 'attentionBias', mlp: false },
  qkNorm: 'head',
  qkNormLast: true,
  norm: { eps: ['rms_norm_eps', 1e-5] },
  names: { qNorm: 'query_layernorm', kNorm: 'key_layernorm' },
  window: 'none',
  rope: { ...COMMON_ROPE, alpha: true },
  moe: {
    experts: ['num_experts', 1],
    perToken: 1,
    perTokenKey: 'moe_topk',
    hidden: 'intermediate_size',
    shared: 'ungated',
    choosesNorm: false,
    choosesLayers: false,
    scores: 'softmax',
    files: QWEN_FILES,
  },
  files: {
    'model.layers.*.mlp.gate.weight': 'model.layers.*.mlp.gate.wg.weight',
    ...Object.fromEntries(
      ['gate_proj', 'up_proj', 'down_proj'].map((name) => [
        `model.layers.*.mlp.shared_experts.${name}.weight`,
        `model.layers.*.mlp.shared_mlp.${name}.weight`,
      ]),
    ),
  },
  keys: { n_shared_experts: 'num_shared_expert' },
  only: { use_qk_norm: [true], use_cla: [false], mlp_bias: [false], use_mixed_mlp_moe: [true] },
  defaults: {
    max_position_embeddings: 2048,
    pad_token_id: 0,
    intermediate_size: 11_008,
    n_shared_experts: 1,
  },
};

/**
 * Language models published as Hunyuan-A13B. Source: Tencent 2025; transformers'
 * HunYuanMoEV1ForCausalLM.
 */
export class HunYuanMoe extends RotaryLM {
  /** Throws DS_ARGUMENT for an unknown option and for invalid sizes. */
  constructor(options: HunYuanMoeConfig) {
    super(TRAITS, options);
  }

  /** @internal Describes the family for models.fromPretrained(). */
  static readonly family = rotaryFamily(
    TRAITS,
    (config: HunYuanMoeConfig) => new HunYuanMoe(config),
  );
}
