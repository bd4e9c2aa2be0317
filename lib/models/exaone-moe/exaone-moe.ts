// K-EXAONE: head norms, windows, a router with sigmoid scores; other layers have no positions.
import type { FamilyConfig } from '../rotary/config.js';
import { type MoeConfig, QWEN_FILES } from '../rotary/mixture.js';
import { RotaryLM, rotaryFamily } from '../rotary/rotary-lm.js';
import { COMMON_ROPE, type RotaryTraits } from '../rotary/traits.js';

/** Options of ExaoneMoe: sizes, and the mode of its activations. */
export interface ExaoneMoeConfig extends FamilyConfig<'window'> {
  /** The experts, including the shared ones. */
  moe: MoeConfig & { sharedHidden: number };
}

const TRAITS: RotaryTraits = {
  name: 'ExaoneMoe',
  modelType: 'exaone_moe',
  architecture: 'ExaoneMoeForCausalLM',
  biases: { qkv: false, out: false, mlp: false },
  qkNorm: 'head',
  norm: { eps: ['rms_norm_eps', 1e-5] },
  hasPredictors: 'apart',
  window: 'layers',
  windowEvery: ['sliding_window_pattern', 4],
  rope: { ...COMMON_ROPE, off: 'unwindowedIfMixed' },
  moe: {
    experts: ['num_experts', 64],
    perToken: 8,
    hidden: 'moe_intermediate_size',
    shared: 'ungated',
    choosesNorm: true,
    choosesLayers: 'first',
    listsLayers: true,
    scores: 'sigmoid',
    files: { ...QWEN_FILES, choiceBias: 'e_score_correction_bias' },
  },
  keys: { n_shared_experts: 'num_shared_experts' },
  defaults: {
    max_position_embeddings: 2048,
    num_key_value_heads: 32,
    pad_token_id: 0,
    sliding_window: 4096,
    intermediate_size: 16_384,
    moe_intermediate_size: 1024,
    n_shared_experts: 1,
    first_k_dense_replace: 1,
    norm_topk_prob: true,
    routed_scaling_factor: 2.5,
  },
};

/**
 * Language models published as K-EXAONE 236B-A23B. Source: LG AI Research 2025; transformers'
 * ExaoneMoeForCausalLM.
 */
export class ExaoneMoe extends RotaryLM {
  /** Throws DS_ARGUMENT for an unknown option and for invalid sizes. */
  constructor(options: ExaoneMoeConfig) {
    super(TRAITS, options);
  }

  /** @internal Describes the family for models.fromPretrained(). */
  static readonly family = rotaryFamily(TRAITS, (config: ExaoneMoeConfig) => new ExaoneMoe(config));
}
