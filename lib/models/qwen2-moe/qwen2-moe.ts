// Qwen2-MoE: Qwen2 with mixture-of-experts feed-forward blocks and a shared expert.
import type { FamilyConfig } from '../rotary/config.js';
import { type MoeConfig, QWEN_FILES } from '../rotary/mixture.js';
import { RotaryLM, rotaryFamily } from '../rotary/rotary-lm.js';
import type { RotaryTraits } from '../rotary/traits.js';

/** Sizes of a Qwen2-MoE, and the mode of its activations. */
export interface Qwen2MoeConfig extends FamilyConfig<'window' | 'routerAuxLossCoef'> {
  /** The experts, including the shared expert. */
  moe: MoeConfig & { sharedHidden: number };
}

const TRAITS: RotaryTraits = {
  name: 'Qwen2Moe',
  modelType: 'qwen2_moe',
  architecture: 'Qwen2MoeForCausalLM',
  biases: { qkv: true, out: false, mlp: false },
  window: 'layers',
  // Every second layer: transformers' default without a list.
  slidesAt: (layer, first) => layer % 2 === 0 && layer < first,
  moe: {
    experts: ['num_experts', 60],
    perToken: 4,
    hidden: 'moe_intermediate_size',
    shared: true,
    choosesNorm: true,
    choosesLayers: true,
    files: QWEN_FILES,
  },
  defaults: {
    max_position_embeddings: 32_768,
    num_key_value_heads: 16,
    sliding_window: 4096,
    max_window_layers: 28,
    intermediate_size: 5632,
    moe_intermediate_size: 1408,
    shared_expert_intermediate_size: 5632,
  },
};

/**
 * Language models published as Qwen1.5-MoE, Qwen2-57B-A14B. Source: Qwen team 2024 (Qwen1.5-MoE,
 * Qwen2-57B-A14B); transformers' Qwen2MoeForCausalLM.
 */
export class Qwen2Moe extends RotaryLM {
  /** Throws DS_ARGUMENT for an unknown option and for invalid sizes. */
  constructor(options: Qwen2MoeConfig) {
    super(TRAITS, options);
  }

  /** @internal Describes the family for models.fromPretrained(). */
  static readonly family = rotaryFamily(TRAITS, (config: Qwen2MoeConfig) => new Qwen2Moe(config));
}
