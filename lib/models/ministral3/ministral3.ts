// Ministral 3: Mistral with a scale of queries by their position.
import type { FamilyConfig } from '../rotary/config.js';
import { RotaryLM, rotaryFamily } from '../rotary/rotary-lm.js';
import { COMMON_ROPE, type RotaryTraits } from '../rotary/traits.js';

/** Options of Ministral3: sizes, and the mode of its activations. */
export type Ministral3Config = FamilyConfig<'window'>;

const TRAITS: RotaryTraits = {
  name: 'Ministral3',
  modelType: 'ministral3',
  textOf: ['mistral3'],
  architecture: 'Ministral3ForCausalLM',
  biases: { qkv: false, out: false, mlp: false },
  norm: { eps: ['rms_norm_eps', 1e-5] },
  window: 'uniform',
  rope: {
    ...COMMON_ROPE,
    types: ['yarn'],
    scalesQueries: true,
    sectionsOnly: true,
    // transformers computes nothing with it.
    ofPictures: ['max_position_embeddings'],
  },
  defaults: {
    max_position_embeddings: 262_144,
    num_key_value_heads: 8,
    head_dim: 128,
    sliding_window: null,
    pad_token_id: 11,
    intermediate_size: 14_336,
    rope_parameters: {
      rope_type: 'yarn',
      rope_theta: 1e6,
      factor: 16,
      llama_4_scaling_beta: 0.1,
      original_max_position_embeddings: 16_384,
      beta_fast: 32,
      beta_slow: 1,
      mscale: 1,
      mscale_all_dim: 1,
    },
  },
};

/**
 * Language models published as Ministral 3 3B to 14B. Source: Mistral AI 2025; transformers'
 * Ministral3ForCausalLM.
 */
export class Ministral3 extends RotaryLM {
  /** Throws DS_ARGUMENT for an unknown option and for invalid sizes. */
  constructor(options: Ministral3Config) {
    super(TRAITS, options);
  }

  /** @internal Describes the family for models.fromPretrained(). */
  static readonly family = rotaryFamily(
    TRAITS,
    (config: Ministral3Config) => new Ministral3(config),
  );
}
