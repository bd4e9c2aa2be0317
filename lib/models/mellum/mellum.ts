// Mellum 2: Qwen3 with experts, windows, and own angles of layers with a window.
import type { FamilyConfig } from '../rotary/config.js';
import { type MoeConfig, QWEN_FILES } from '../rotary/mixture.js';
import { RotaryLM, rotaryFamily } from '../rotary/rotary-lm.js';
import { COMMON_ROPE, type RotaryTraits } from '../rotary/traits.js';

/** Options of Mellum: sizes, and the mode of its activations. */
export interface MellumConfig
  extends FamilyConfig<'attentionBias' | 'window' | 'windowRopeTheta' | 'routerAuxLossCoef'> {
  /** The experts. */
  moe: MoeConfig;
}

const TRAITS: RotaryTraits = {
  name: 'Mellum',
  modelType: 'mellum',
  architecture: 'MellumForCausalLM',
  biases: { qkv: 'attentionBias', out: 'attentionBias', mlp: false },
  qkNorm: 'head',
  window: 'layers',
  slidesAt: () => false,
  unswitched: true,
  rope: { ...COMMON_ROPE, sectionsOnly: true, ofWindows: { key: null, fallback: 10_000 } },
  moe: {
    experts: ['num_experts', 64],
    perToken: 8,
    hidden: 'moe_intermediate_size',
    shared: false,
    choosesNorm: true,
    choosesLayers: 'first',
    listsLayers: true,
    files: QWEN_FILES,
  },
  defaults: {
    max_position_embeddings: 131_072,
    num_key_value_heads: 4,
    head_dim: 128,
    sliding_window: 1024,
    intermediate_size: 7168,
    moe_intermediate_size: 896,
    norm_topk_prob: true,
    rope_parameters: {
      full_attention: { rope_type: 'default', rope_theta: 500_000 },
      sliding_attention: { rope_type: 'default', rope_theta: 10_000 },
    },
  },
};

/**
 * Language models published as Mellum 2 12B-A2.5B. Source: JetBrains 2026; transformers'
 * MellumForCausalLM.
 */
export class Mellum extends RotaryLM {
  /** Throws DS_ARGUMENT for an unknown option and for invalid sizes. */
  constructor(options: MellumConfig) {
    super(TRAITS, options);
  }

  /** @internal Describes the family for models.fromPretrained(). */
  static readonly family = rotaryFamily(TRAITS, (config: MellumConfig) => new Mellum(config));
}
