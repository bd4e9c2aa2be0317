// GLM-4.7 Flash: the latent attention of DeepSeek V3 and the mixtures of GLM-4.5.
import type { FamilyConfig } from '../rotary/config.js';
import { type MoeConfig, QWEN_FILES } from '../rotary/mixture.js';
import { RotaryLM, rotaryFamily } from '../rotary/rotary-lm.js';
import { COMMON_ROPE, type RotaryTraits } from '../rotary/traits.js';

/** Options of Glm4MoeLite: sizes, and the mode of its activations. */
export interface Glm4MoeLiteConfig extends FamilyConfig<'attentionBias' | 'latent'> {
  /** The experts, including the shared ones. */
  moe: MoeConfig & { sharedHidden: number };
}

const TRAITS: RotaryTraits = {
  name: 'Glm4MoeLite',
  modelType: 'glm4_moe_lite',
  architecture: 'Glm4MoeLiteForCausalLM',
  biases: { qkv: 'attentionBias', out: 'attentionBias', mlp: false },
  norm: { eps: ['rms_norm_eps', 1e-5] },
  latent: true,
  hasPredictors: true,
  window: 'none',
  rope: { ...COMMON_ROPE, interleaved: true },
  moe: {
    experts: ['n_routed_experts', 64],
    perToken: 4,
    hidden: 'moe_intermediate_size',
    shared: 'ungated',
    choosesNorm: true,
    choosesLayers: 'first',
    listsLayers: true,
    scores: 'sigmoid',
    files: QWEN_FILES,
  },
  only: { rope_interleave: [true] },
  defaults: {
    max_position_embeddings: 202_752,
    num_attention_heads: 20,
    norm_topk_prob: true,
    q_lora_rank: 768,
    kv_lora_rank: 512,
    qk_nope_head_dim: 192,
    qk_rope_head_dim: 64,
    v_head_dim: 256,
    first_k_dense_replace: 1,
    n_shared_experts: 1,
    routed_scaling_factor: 1.8,
    moe_intermediate_size: 1536,
    intermediate_size: 10_240,
  },
};

/**
 * Language models published as GLM-4.7-Flash. Source: Zhipu AI 2026; transformers'
 * Glm4MoeLiteForCausalLM.
 */
export class Glm4MoeLite extends RotaryLM {
  /** Throws DS_ARGUMENT for an unknown option and for invalid sizes. */
  constructor(options: Glm4MoeLiteConfig) {
    super(TRAITS, options);
  }

  /** @internal Describes the family for models.fromPretrained(). */
  static readonly family = rotaryFamily(
    TRAITS,
    (config: Glm4MoeLiteConfig) => new Glm4MoeLite(config),
  );
}
