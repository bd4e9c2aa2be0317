// DeepSeek V2: latent attention, and a router by groups with a softmax.
import type { FamilyConfig } from '../rotary/config.js';
import { type MoeConfig, QWEN_FILES } from '../rotary/mixture.js';
import { RotaryLM, rotaryFamily } from '../rotary/rotary-lm.js';
import { COMMON_ROPE, type RotaryTraits } from '../rotary/traits.js';

/** Options of DeepseekV2: sizes, and the mode of its activations. */
export interface DeepseekV2Config extends FamilyConfig<'attentionBias' | 'latent'> {
  /** The experts, including the shared ones. */
  moe: Omit<MoeConfig, 'normalize'> & { sharedHidden: number };
}

const TRAITS: RotaryTraits = {
  name: 'DeepseekV2',
  modelType: 'deepseek_v2',
  architecture: 'DeepseekV2ForCausalLM',
  biases: { qkv: 'attentionBias', out: 'attentionBias', mlp: false },
  latent: true,
  window: 'none',
  rope: { ...COMMON_ROPE, interleaved: true },
  moe: {
    experts: ['n_routed_experts', 64],
    perToken: 6,
    hidden: 'moe_intermediate_size',
    shared: 'ungated',
    choosesNorm: 'never',
    choosesLayers: 'first',
    scores: 'softmax',
    files: QWEN_FILES,
  },
  only: { mlp_bias: [false] },
  defaults: {
    max_position_embeddings: 2048,
    num_attention_heads: 32,
    q_lora_rank: 1536,
    kv_lora_rank: 512,
    qk_nope_head_dim: 128,
    qk_rope_head_dim: 64,
    v_head_dim: 128,
    n_shared_experts: 2,
    moe_intermediate_size: 1407,
    intermediate_size: 11_008,
    first_k_dense_replace: 0,
  },
};

/**
 * Language models published as DeepSeek V2, V2-Lite, Coder V2. Source: DeepSeek-AI 2024;
 * transformers' DeepseekV2ForCausalLM.
 */
export class DeepseekV2 extends RotaryLM {
  /** Throws DS_ARGUMENT for an unknown option and for invalid sizes. */
  constructor(options: DeepseekV2Config) {
    super(TRAITS, options);
  }

  /** @internal Describes the family for models.fromPretrained(). */
  static readonly family = rotaryFamily(
    TRAITS,
    (config: DeepseekV2Config) => new DeepseekV2(config),
  );
}
