// Qwen3.5 with mixture-of-experts feed-forward blocks.
import type { FamilyConfig } from '../rotary/config.js';
import type { DeltaSizes } from '../rotary/delta-config.js';
import { type MoeConfig, QWEN_FILES } from '../rotary/mixture.js';
import { RotaryLM, rotaryFamily } from '../rotary/rotary-lm.js';
import { COMMON_ROPE, type RotaryTraits } from '../rotary/traits.js';

/** Options of Qwen35Moe: sizes, and the mode of its activations. */
export interface Qwen35MoeConfig
  extends FamilyConfig<'attentionBias' | 'partialRotaryFactor' | 'delta' | 'routerAuxLossCoef'> {
  /** The layers of gated delta nets. */
  delta: DeltaSizes;
  /** The experts, including the shared one. */
  moe: MoeConfig & { sharedHidden: number };
}

const TRAITS: RotaryTraits = {
  name: 'Qwen35Moe',
  modelType: 'qwen3_5_moe_text',
  textOf: ['qwen3_5_moe'],
  architecture: 'Qwen3_5MoeForCausalLM',
  biases: { qkv: 'attentionBias', out: 'attentionBias', mlp: false },
  qkNorm: 'head',
  gated: true,
  norm: { offset: true },
  window: 'none',
  hasPredictors: true,
  delta: { joined: false },
  rope: {
    ...COMMON_ROPE,
    partial: true,
    partialFallback: 0.25,
    ofPictures: ['mrope_section', 'mrope_interleaved'],
  },
  moe: {
    experts: ['num_experts', 256],
    perToken: 8,
    hidden: 'moe_intermediate_size',
    shared: true,
    choosesNorm: false,
    choosesLayers: false,
    files: QWEN_FILES,
  },
  only: { attn_output_gate: [true] },
  defaults: {
    head_dim: 256,
    max_position_embeddings: 32_768,
    num_key_value_heads: 2,
    intermediate_size: 512,
    moe_intermediate_size: 512,
    shared_expert_intermediate_size: 512,
  },
};

/**
 * Language models published as Qwen3.5 and 3.6, A3B and larger; the text part. Source: Qwen team
 * 2026; transformers' Qwen3_5MoeForCausalLM.
 */
export class Qwen35Moe extends RotaryLM {
  /** Throws DS_ARGUMENT for an unknown option and for invalid sizes. */
  constructor(options: Qwen35MoeConfig) {
    super(TRAITS, options);
  }

  /** @internal Describes the family for models.fromPretrained(). */
  static readonly family = rotaryFamily(TRAITS, (config: Qwen35MoeConfig) => new Qwen35Moe(config));
}
