// Helium: Llama with pairs of neighbouring channels.
import type { FamilyConfig } from '../rotary/config.js';
import { RotaryLM, rotaryFamily } from '../rotary/rotary-lm.js';
import { COMMON_ROPE, type RotaryTraits } from '../rotary/traits.js';

/** Options of Helium: sizes, and the mode of its activations. */
export type HeliumConfig = FamilyConfig<'attentionBias' | 'mlpBias'>;

const TRAITS: RotaryTraits = {
  name: 'Helium',
  modelType: 'helium',
  architecture: 'HeliumForCausalLM',
  biases: { qkv: 'attentionBias', out: false, mlp: 'mlpBias' },
  norm: { eps: ['rms_norm_eps', 1e-8] },
  window: 'none',
  rope: { ...COMMON_ROPE, interleaved: true },
  defaults: {
    max_position_embeddings: 4096,
    num_key_value_heads: 20,
    head_dim: 128,
    pad_token_id: 3,
    rope_theta: 100_000,
    intermediate_size: 7040,
  },
};

/** Language models published as Helium 1. Source: Kyutai 2025; transformers' HeliumForCausalLM. */
export class Helium extends RotaryLM {
  /** Throws DS_ARGUMENT for an unknown option and for invalid sizes. */
  constructor(options: HeliumConfig) {
    super(TRAITS, options);
  }

  /** @internal Describes the family for models.fromPretrained(). */
  static readonly family = rotaryFamily(TRAITS, (config: HeliumConfig) => new Helium(config));
}
