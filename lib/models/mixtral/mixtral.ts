// Mixtral: Mistral with mixture-of-experts feed-forward blocks.
import type { FamilyConfig } from '../rotary/config.js';
import type { MoeConfig } from '../rotary/mixture.js';
import { RotaryLM, rotaryFamily } from '../rotary/rotary-lm.js';
import type { RotaryTraits } from '../rotary/traits.js';

/** Options of Mixtral: sizes, and the mode of its activations. */
export interface MixtralConfig extends FamilyConfig<'window' | 'routerAuxLossCoef'> {
  /** The experts; their width defaults to `hidden`. */
  moe: Omit<MoeConfig, 'sharedHidden' | 'normalize' | 'denseLayers'>;
}

const TRAITS: RotaryTraits = {
  name: 'Mixtral',
  modelType: 'mixtral',
  architecture: 'MixtralForCausalLM',
  biases: { qkv: false, out: false, mlp: false },
  window: 'uniform',
  moe: {
    experts: ['num_local_experts', 8],
    perToken: 2,
    hidden: 'intermediate_size',
    shared: false,
    choosesNorm: false,
    choosesLayers: false,
    files: { block: 'block_sparse_moe', gate: 'w1', up: 'w3', down: 'w2' },
  },
  defaults: {
    max_position_embeddings: 131_072,
    num_key_value_heads: 8,
    rms_norm_eps: 1e-5,
    rope_theta: 1e6,
  },
};

/**
 * Language models published as Mixtral 8x7B, 8x22B. Source: Jiang et al. 2024; transformers'
 * MixtralForCausalLM.
 */
export class Mixtral extends RotaryLM {
  /** Throws DS_ARGUMENT for an unknown option and for invalid sizes. */
  constructor(options: MixtralConfig) {
    super(TRAITS, options);
  }

  /** @internal Describes the family for models.fromPretrained(). */
  static readonly family = rotaryFamily(TRAITS, (config: MixtralConfig) => new Mixtral(config));
}
