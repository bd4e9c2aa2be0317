// Solar Open: experts in all layers, with a router of sigmoid scores.
import type { FamilyConfig } from '../rotary/config.js';
import { type MoeConfig, QWEN_FILES } from '../rotary/mixture.js';
import { RotaryLM, rotaryFamily } from '../rotary/rotary-lm.js';
import type { RotaryTraits } from '../rotary/traits.js';

/** Options of SolarOpen: sizes, and the mode of its activations. */
export interface SolarOpenConfig extends FamilyConfig<'attentionBias'> {
  /** The experts, including the shared ones. */
  moe: MoeConfig & { sharedHidden: number };
}

const TRAITS: RotaryTraits = {
  name: 'SolarOpen',
  modelType: 'solar_open',
  architecture: 'SolarOpenForCausalLM',
  biases: { qkv: 'attentionBias', out: false, mlp: false },
  norm: { eps: ['rms_norm_eps', 1e-5] },
  window: 'none',
  moe: {
    experts: ['n_routed_experts', 128],
    perToken: 8,
    hidden: 'moe_intermediate_size',
    shared: 'ungated',
    choosesNorm: true,
    choosesLayers: false,
    scores: 'sigmoid',
    files: QWEN_FILES,
  },
  only: { use_qk_norm: [false], first_k_dense_replace: [0] },
  defaults: {
    max_position_embeddings: 131_072,
    num_key_value_heads: 8,
    head_dim: 128,
    rope_theta: 1_000_000,
    norm_topk_prob: true,
    n_shared_experts: 1,
    moe_intermediate_size: 1280,
    intermediate_size: 10_240,
  },
};

/**
 * Language models published as Solar Open 100B. Source: Upstage 2025; transformers'
 * SolarOpenForCausalLM.
 */
export class SolarOpen extends RotaryLM {
  /** Throws DS_ARGUMENT for an unknown option and for invalid sizes. */
  constructor(options: SolarOpenConfig) {
    super(TRAITS, options);
  }

  /** @internal Describes the family for models.fromPretrained(). */
  static readonly family = rotaryFamily(TRAITS, (config: SolarOpenConfig) => new SolarOpen(config));
}
