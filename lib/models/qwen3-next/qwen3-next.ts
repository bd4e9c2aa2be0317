// Qwen3-Next: mixtures behind gated delta nets, and gated attention in every fourth layer.
import type { FamilyConfig } from '../rotary/config.js';
import type { DeltaSizes } from '../rotary/delta-config.js';
import { type MoeConfig, QWEN_FILES } from '../rotary/mixture.js';
import { RotaryLM, rotaryFamily } from '../rotary/rotary-lm.js';
import { COMMON_ROPE, type RotaryTraits } from '../rotary/traits.js';

/** Options of Qwen3Next: sizes, and the mode of its activations. */
export interface Qwen3NextConfig
  extends FamilyConfig<'attentionBias' | 'partialRotaryFactor' | 'delta' | 'routerAuxLossCoef'> {
  /** The layers of gated delta nets. */
  delta: DeltaSizes;
  /** The experts, including the shared one. */
  moe: MoeConfig & { sharedHidden: number };
}

const TRAITS: RotaryTraits = {
  name: 'Qwen3Next',
  modelType: 'qwen3_next',
  architecture: 'Qwen3NextForCausalLM',
  biases: { qkv: 'attentionBias', out: 'attentionBias', mlp: false },
  qkNorm: 'head',
  gated: true,
  norm: { offset: true },
  window: 'none',
  hasPredictors: true,
  delta: { joined: true },
  rope: { ...COMMON_ROPE, partial: true, partialFallback: 0.25 },
  moe: {
    experts: ['num_experts', 512],
    perToken: 10,
    hidden: 'moe_intermediate_size',
    shared: true,
    choosesNorm: true,
    choosesLayers: true,
    files: QWEN_FILES,
  },
  only: { attn_output_gate: [true] },
  defaults: {
    head_dim: 256,
    max_position_embeddings: 32_768,
    num_key_value_heads: 2,
    intermediate_size: 5632,
    moe_intermediate_size: 512,
    norm_topk_prob: true,
    shared_expert_intermediate_size: 512,
  },
};

/**
 * Language models published as Qwen3-Next-80B-A3B, Qwen3-Coder-Next. Source: Qwen team 2025;
 * transformers' Qwen3NextForCausalLM.
 */
export class Qwen3Next extends RotaryLM {
  /** Throws DS_ARGUMENT for an unknown option and for invalid sizes. */
  constructor(options: Qwen3NextConfig) {
    super(TRAITS, options);
  }

  /** @internal Describes the family for models.fromPretrained(). */
  static readonly family = rotaryFamily(TRAITS, (config: Qwen3NextConfig) => new Qwen3Next(config));
}
