// ERNIE 4.5, mixtures: neighbouring channels are pairs, and softmax scores have a bias for the
// choice.
import type { FamilyConfig } from '../rotary/config.js';
import { type MoeConfig, QWEN_FILES } from '../rotary/mixture.js';
import { RotaryLM, rotaryFamily } from '../rotary/rotary-lm.js';
import { COMMON_ROPE, type RotaryTraits } from '../rotary/traits.js';

/** Options of Ernie45Moe: sizes, and the mode of its activations. */
export interface Ernie45MoeConfig extends FamilyConfig {
  /** The experts, including the shared ones. */
  moe: MoeConfig & { sharedHidden: number };
}

const TRAITS: RotaryTraits = {
  name: 'Ernie45Moe',
  modelType: 'ernie4_5_moe',
  architecture: 'Ernie4_5_MoeForCausalLM',
  biases: { qkv: false, out: false, mlp: false },
  norm: { eps: ['rms_norm_eps', 1e-5] },
  hasPredictors: 'apart',
  window: 'none',
  rope: { ...COMMON_ROPE, interleaved: true },
  moe: {
    experts: ['moe_num_experts', 64],
    perToken: 6,
    hidden: 'moe_intermediate_size',
    shared: 'ungated',
    choosesNorm: false,
    choosesLayers: 'first',
    scores: 'softmax',
    choiceBias: true,
    files: { ...QWEN_FILES, choiceBias: 'moe_statics.e_score_correction_bias' },
  },
  keys: {
    num_experts_per_tok: 'moe_k',
    n_shared_experts: 'moe_num_shared_experts',
    first_k_dense_replace: 'moe_layer_start_index',
  },
  only: { use_bias: [false], moe_layer_interval: [1] },
  defaults: {
    max_position_embeddings: 131_072,
    num_key_value_heads: 4,
    pad_token_id: 0,
    rope_theta: 500_000,
    tie_word_embeddings: true,
    moe_intermediate_size: 1536,
    intermediate_size: 12_288,
    n_shared_experts: 2,
    first_k_dense_replace: 1,
  },
};

/**
 * Language models published as ERNIE 4.5 21B-A3B, 300B-A47B. Source: Baidu 2025; transformers'
 * Ernie4_5_MoeForCausalLM.
 */
export class Ernie45Moe extends RotaryLM {
  /** Throws DS_ARGUMENT for an unknown option and for invalid sizes. */
  constructor(options: Ernie45MoeConfig) {
    super(TRAITS, options);
  }

  /** @internal Describes the family for models.fromPretrained(). */
  static readonly family = rotaryFamily(
    TRAITS,
    (config: Ernie45MoeConfig) => new Ernie45Moe(config),
  );
}
