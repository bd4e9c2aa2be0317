// OLMo 2: norms after the branches, and norms over all heads of queries and keys.
import type { FamilyConfig } from '../rotary/config.js';
import { RotaryLM, rotaryFamily } from '../rotary/rotary-lm.js';
import { POST_NORMS, type RotaryTraits } from '../rotary/traits.js';

/** Options of Olmo2: sizes, and the mode of its activations. */
export type Olmo2Config = FamilyConfig<'attentionBias'>;

const TRAITS: RotaryTraits = {
  name: 'Olmo2',
  modelType: 'olmo2',
  architecture: 'Olmo2ForCausalLM',
  biases: { qkv: 'attentionBias', out: 'attentionBias', mlp: false },
  qkNorm: 'whole',
  norm: { eps: ['rms_norm_eps', 1e-5], block: POST_NORMS },
  window: 'none',
  defaults: { max_position_embeddings: 2048, pad_token_id: 1 },
};

/** Language models published as OLMo 2. Source: OLMo team 2024; transformers' Olmo2ForCausalLM. */
export class Olmo2 extends RotaryLM {
  /** Throws DS_ARGUMENT for an unknown option and for invalid sizes. */
  constructor(options: Olmo2Config) {
    super(TRAITS, options);
  }

  /** @internal Describes the family for models.fromPretrained(). */
  static readonly family = rotaryFamily(TRAITS, (config: Olmo2Config) => new Olmo2(config));
}
