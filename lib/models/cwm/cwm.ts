// Code World Model: Llama with a window in three of four layers.
import type { FamilyConfig } from '../rotary/config.js';
import { RotaryLM, rotaryFamily } from '../rotary/rotary-lm.js';
import { COMMON_ROPE, type RotaryTraits } from '../rotary/traits.js';

/** Options of Cwm: sizes, and the mode of its activations. */
export type CwmConfig = FamilyConfig<'window'>;

const TRAITS: RotaryTraits = {
  name: 'Cwm',
  modelType: 'cwm',
  architecture: 'CwmForCausalLM',
  biases: { qkv: false, out: false, mlp: false },
  norm: { eps: ['rms_norm_eps', 1e-5] },
  window: 'layers',
  slidesAt: (layer) => layer % 4 !== 0,
  unswitched: true,
  rope: {
    ...COMMON_ROPE,
    unset: {
      rope_type: 'llama3',
      rope_theta: 1e6,
      factor: 16,
      high_freq_factor: 4,
      low_freq_factor: 1,
      original_max_position_embeddings: 8192,
    },
  },
  only: { attention_bias: [false], mlp_bias: [false], pretraining_tp: [1] },
  defaults: {
    max_position_embeddings: 131_072,
    num_key_value_heads: 8,
    head_dim: 128,
    sliding_window: 8192,
    rope_theta: 1e6,
  },
};

/**
 * Language models published as Code World Model 32B. Source: FAIR CodeGen team 2025;
 * transformers' CwmForCausalLM.
 */
export class Cwm extends RotaryLM {
  /** Throws DS_ARGUMENT for an unknown option and for invalid sizes. */
  constructor(options: CwmConfig) {
    super(TRAITS, options);
  }

  /** @internal Describes the family for models.fromPretrained(). */
  static readonly family = rotaryFamily(TRAITS, (config: CwmConfig) => new Cwm(config));
}
