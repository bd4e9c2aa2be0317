// Qwen3-MoE: Qwen3 with mixture-of-experts feed-forward blocks.
import type { FamilyConfig } from '../rotary/config.js';
import { type MoeConfig, QWEN_FILES } from '../rotary/mixture.js';
import { RotaryLM, rotaryFamily } from '../rotary/rotary-lm.js';
import { COMMON_ROPE, type RotaryTraits } from '../rotary/traits.js';

/** Sizes of a Qwen3-MoE, and the mode of its activations. */
export interface Qwen3MoeConfig
  extends FamilyConfig<'attentionBias' | 'window' | 'routerAuxLossCoef'> {
  /** The experts. */
  moe: Omit<MoeConfig, 'sharedHidden'>;
}

const TRAITS: RotaryTraits = {
  name: 'Qwen3Moe',
  modelType: 'qwen3_moe',
  textOf: ['qwen3_vl_moe'],
  architecture: 'Qwen3MoeForCausalLM',
  biases: { qkv: 'attentionBias', out: 'attentionBias', mlp: false },
  qkNorm: 'head',
  window: 'uniform',
  rope: {
    ...COMMON_ROPE,
    aliases: { ...COMMON_ROPE.aliases, mrope: 'default' },
    ofPictures: ['mrope_section', 'mrope_interleaved'],
  },
  moe: {
    experts: ['num_experts', 128],
    perToken: 8,
    hidden: 'moe_intermediate_size',
    shared: false,
    choosesNorm: true,
    choosesLayers: true,
    files: QWEN_FILES,
  },
  defaults: {
    max_position_embeddings: 32_768,
    num_key_value_heads: 4,
    use_sliding_window: false,
    sliding_window: 4096,
    intermediate_size: 6144,
    moe_intermediate_size: 768,
  },
};

/**
 * Language models published as Qwen3-30B-A3B, Qwen3-235B-A22B, Qwen3-Coder. Source: Qwen team 2025;
 * transformers' Qwen3MoeForCausalLM.
 */
export class Qwen3Moe extends RotaryLM {
  /** Throws DS_ARGUMENT for an unknown option and for invalid sizes. */
  constructor(options: Qwen3MoeConfig) {
    super(TRAITS, options);
  }

  /** @internal Describes the family for models.fromPretrained(). */
  static readonly family = rotaryFamily(TRAITS, (config: Qwen3MoeConfig) => new Qwen3Moe(config));
}
