// DeepSeek V3 and R1: latent attention, and a router by groups with sigmoid scores.
import type { FamilyConfig } from '../rotary/config.js';
import { type MoeConfig, QWEN_FILES } from '../rotary/mixture.js';
import { RotaryLM, rotaryFamily } from '../rotary/rotary-lm.js';
import { COMMON_ROPE, type RotaryTraits } from '../rotary/traits.js';

/** Options of DeepseekV3: sizes, and the mode of its activations. */
export interface DeepseekV3Config extends FamilyConfig<'attentionBias' | 'latent'> {
  /** The experts, including the shared ones. */
  moe: MoeConfig & { sharedHidden: number };
}

const TRAITS: RotaryTraits = {
  name: 'DeepseekV3',
  modelType: 'deepseek_v3',
  // Kimi K2 has the same computation; so have the others within denseUpTo.
  alsoTypes: {
    kimi_k2: {},
    deepseek_v32: { index_topk: 2048 },
    glm_moe_dsa: {
      index_topk: 2048,
      rms_norm_eps: 1e-5,
      num_attention_heads: 64,
      q_lora_rank: 2048,
      qk_nope_head_dim: 192,
      v_head_dim: 256,
      n_group: 1,
      topk_group: 1,
      intermediate_size: 12_288,
    },
  },
  denseUpTo: 'index_topk',
  textOf: ['kimi_vl', 'kimi_k25'],
  architecture: 'DeepseekV3ForCausalLM',
  biases: { qkv: 'attentionBias', out: 'attentionBias', mlp: false },
  latent: true,
  hasPredictors: true,
  window: 'none',
  rope: { ...COMMON_ROPE, interleaved: true },
  moe: {
    experts: ['n_routed_experts', 256],
    perToken: 8,
    hidden: 'moe_intermediate_size',
    shared: 'ungated',
    choosesNorm: true,
    choosesLayers: 'first',
    scores: 'sigmoid',
    files: QWEN_FILES,
  },
  only: { rope_interleave: [true] },
  defaults: {
    max_position_embeddings: 4096,
    num_attention_heads: 128,
    norm_topk_prob: true,
    q_lora_rank: 1536,
    kv_lora_rank: 512,
    qk_nope_head_dim: 128,
    qk_rope_head_dim: 64,
    v_head_dim: 128,
    n_group: 8,
    topk_group: 4,
    first_k_dense_replace: 3,
    n_shared_experts: 1,
    routed_scaling_factor: 2.5,
    moe_intermediate_size: 2048,
    intermediate_size: 18_432,
  },
};

/**
 * Language models published as DeepSeek V3, R1, V3.2, Kimi K2, GLM-5. Source: DeepSeek-AI 2024;
 * transformers' DeepseekV3ForCausalLM.
 */
export class DeepseekV3 extends RotaryLM {
  /** Throws DS_ARGUMENT for an unknown option and for invalid sizes. */
  constructor(options: DeepseekV3Config) {
    super(TRAITS, options);
  }

  /** @internal Describes the family for models.fromPretrained(). */
  static readonly family = rotaryFamily(
    TRAITS,
    (config: DeepseekV3Config) => new DeepseekV3(config),
  );
}
