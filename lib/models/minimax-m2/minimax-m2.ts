// MiniMax M2: Mixtral with sigmoid scores, and norms over all heads of queries and keys.
import type { FamilyConfig } from '../rotary/config.js';
import type { MoeConfig } from '../rotary/mixture.js';
import { RotaryLM, rotaryFamily } from '../rotary/rotary-lm.js';
import { COMMON_ROPE, type RotaryTraits } from '../rotary/traits.js';

/** Options of MiniMaxM2: sizes, and the mode of its activations. */
export interface MiniMaxM2Config extends FamilyConfig<'partialRotaryFactor'> {
  /** The experts; their width defaults to `hidden`. */
  moe: Omit<MoeConfig, 'sharedHidden' | 'normalize' | 'denseLayers'>;
}

const TRAITS: RotaryTraits = {
  name: 'MiniMaxM2',
  modelType: 'minimax_m2',
  architecture: 'MiniMaxM2ForCausalLM',
  biases: { qkv: false, out: false, mlp: false },
  qkNorm: 'whole',
  hasPredictors: true,
  window: 'none',
  rope: { ...COMMON_ROPE, partial: true, otherWidth: 'rotary_dim' },
  moe: {
    experts: ['num_local_experts', 256],
    perToken: 8,
    hidden: 'intermediate_size',
    shared: false,
    choosesNorm: false,
    choosesLayers: false,
    scores: 'sigmoid',
    files: {
      block: 'block_sparse_moe',
      gate: 'w1',
      up: 'w3',
      down: 'w2',
      choiceBias: 'e_score_correction_bias',
    },
  },
  only: {
    use_qk_norm: [true],
    qk_norm_type: ['per_layer'],
    use_routing_bias: [true],
    shared_intermediate_size: [0],
  },
  defaults: {
    max_position_embeddings: 196_608,
    num_key_value_heads: 8,
    head_dim: 128,
    rope_theta: 5e6,
    intermediate_size: 1536,
  },
};

/**
 * Language models published as MiniMax M2, M2.1, M2.5. Source: MiniMax 2025; transformers'
 * MiniMaxM2ForCausalLM.
 */
export class MiniMaxM2 extends RotaryLM {
  /** Throws DS_ARGUMENT for an unknown option and for invalid sizes. */
  constructor(options: MiniMaxM2Config) {
    super(TRAITS, options);
  }

  /** @internal Describes the family for models.fromPretrained(). */
  static readonly family = rotaryFamily(TRAITS, (config: MiniMaxM2Config) => new MiniMaxM2(config));
}
