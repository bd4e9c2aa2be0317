// Hunyuan, dense: Llama with norms of queries and keys behind their rotation.
import type { FamilyConfig } from '../rotary/config.js';
import { RotaryLM, rotaryFamily } from '../rotary/rotary-lm.js';
import { COMMON_ROPE, type RotaryTraits } from '../rotary/traits.js';

/** Options of HunYuan: sizes, and the mode of its activations. */
export type HunYuanConfig = FamilyConfig<'attentionBias'>;

const TRAITS: RotaryTraits = {
  name: 'HunYuan',
  modelType: 'hunyuan_v1_dense',
  architecture: 'HunYuanDenseV1ForCausalLM',
  biases: { qkv: 'attentionBias', out: 'attentionBias', mlp: false },
  qkNorm: 'head',
  qkNormLast: true,
  norm: { eps: ['rms_norm_eps', 1e-5] },
  names: { qNorm: 'query_layernorm', kNorm: 'key_layernorm' },
  window: 'none',
  rope: { ...COMMON_ROPE, alpha: true },
  only: { use_qk_norm: [true], use_cla: [false], mlp_bias: [false] },
  defaults: {
    max_position_embeddings: 2048,
    pad_token_id: 0,
    intermediate_size: 11_008,
  },
};

/**
 * Language models published as Hunyuan 0.5B to 7B. Source: Tencent 2025; transformers'
 * HunYuanDenseV1ForCausalLM.
 */
export class HunYuan extends RotaryLM {
  /** Throws DS_ARGUMENT for an unknown option and for invalid sizes. */
  constructor(options: HunYuanConfig) {
    super(TRAITS, options);
  }

  /** @internal Describes the family for models.fromPretrained(). */
  static readonly family = rotaryFamily(TRAITS, (config: HunYuanConfig) => new HunYuan(config));
}
