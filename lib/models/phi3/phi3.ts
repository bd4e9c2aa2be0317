// Phi-3, 3.5 and 4: Llama with packed projections and optionally partial rotation of heads.
import type { FamilyConfig } from '../rotary/config.js';
import { RotaryLM, rotaryFamily } from '../rotary/rotary-lm.js';
import type { RotaryTraits } from '../rotary/traits.js';

/** Sizes of a Phi-3 or a Phi-4, and the mode of its activations. */
export type Phi3Config = FamilyConfig<'window' | 'partialRotaryFactor' | 'residualDropout'>;

const TRAITS: RotaryTraits = {
  name: 'Phi3',
  modelType: 'phi3',
  architecture: 'Phi3ForCausalLM',
  biases: { qkv: false, out: false, mlp: false },
  window: 'uniform',
  packed: true,
  residualDropout: 'resid_pdrop',
  rope: {
    partial: true,
    types: ['longrope'],
    // Former names of LongRoPE in this family's files.
    aliases: { su: 'longrope', yarn: 'longrope' },
    originalBeside: true,
  },
  defaults: {
    max_position_embeddings: 4096,
    original_max_position_embeddings: 4096,
    rms_norm_eps: 1e-5,
    pad_token_id: 32_000,
  },
};

/**
 * Language models published as Phi-3 mini and medium, Phi-3.5 mini, Phi-4, Phi-4-mini. Source:
 * Abdin et al. 2024 (Phi-3, Phi-4); transformers' Phi3ForCausalLM.
 */
export class Phi3 extends RotaryLM {
  /** Throws DS_ARGUMENT for an unknown option and for invalid sizes. */
  constructor(options: Phi3Config) {
    super(TRAITS, options);
  }

  /** @internal Describes the family for models.fromPretrained(). */
  static readonly family = rotaryFamily(TRAITS, (config: Phi3Config) => new Phi3(config));
}
