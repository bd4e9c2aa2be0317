// GLM-4.5: mixtures with sigmoid scores behind the attention of GLM-4.
import type { FamilyConfig } from '../rotary/config.js';
import { type MoeConfig, QWEN_FILES } from '../rotary/mixture.js';
import { RotaryLM, rotaryFamily } from '../rotary/rotary-lm.js';
import { COMMON_ROPE, type RotaryTraits } from '../rotary/traits.js';

/** Options of Glm4Moe: sizes, and the mode of its activations. */
export interface Glm4MoeConfig
  extends FamilyConfig<'attentionBias' | 'partialRotaryFactor' | 'qkNorm'> {
  /** The experts, including the shared ones. */
  moe: MoeConfig & { sharedHidden: number };
}

const TRAITS: RotaryTraits = {
  name: 'Glm4Moe',
  modelType: 'glm4_moe',
  architecture: 'Glm4MoeForCausalLM',
  biases: { qkv: 'attentionBias', out: false, mlp: false },
  qkNorm: 'head',
  qkNormKey: ['use_qk_norm', false],
  norm: { eps: ['rms_norm_eps', 1e-5] },
  hasPredictors: true,
  window: 'none',
  rope: { ...COMMON_ROPE, partial: true, partialFallback: 0.5 },
  moe: {
    experts: ['n_routed_experts', 128],
    perToken: 8,
    hidden: 'moe_intermediate_size',
    shared: 'ungated',
    choosesNorm: true,
    choosesLayers: 'first',
    scores: 'sigmoid',
    files: QWEN_FILES,
  },
  defaults: {
    max_position_embeddings: 131_072,
    num_key_value_heads: 8,
    norm_topk_prob: true,
    n_shared_experts: 1,
    first_k_dense_replace: 1,
    moe_intermediate_size: 1408,
    intermediate_size: 10_944,
  },
};

/**
 * Language models published as GLM-4.5, 4.6, Air. Source: Zhipu AI 2025; transformers'
 * Glm4MoeForCausalLM.
 */
export class Glm4Moe extends RotaryLM {
  /** Throws DS_ARGUMENT for an unknown option and for invalid sizes. */
  constructor(options: Glm4MoeConfig) {
    super(TRAITS, options);
  }

  /** @internal Describes the family for models.fromPretrained(). */
  static readonly family = rotaryFamily(TRAITS, (config: Glm4MoeConfig) => new Glm4Moe(config));
}
