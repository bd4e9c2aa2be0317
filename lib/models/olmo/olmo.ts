// OLMo 1: layer norms without parameters.
import type { FamilyConfig } from '../rotary/config.js';
import { RotaryLM, rotaryFamily } from '../rotary/rotary-lm.js';
import type { RotaryTraits } from '../rotary/traits.js';

/** Options of Olmo: sizes, and the mode of its activations. */
export type OlmoConfig = FamilyConfig<'attentionBias' | 'scales'>;

const TRAITS: RotaryTraits = {
  name: 'Olmo',
  modelType: 'olmo',
  architecture: 'OlmoForCausalLM',
  biases: { qkv: 'attentionBias', out: 'attentionBias', mlp: false },
  norm: { kind: 'plain', eps: ['layer_norm_eps', 1e-5] },
  window: 'none',
  scales: { clip: { key: 'clip_qkv', fallback: null } },
  only: { layer_norm_eps: [1e-5] },
  defaults: { max_position_embeddings: 2048, pad_token_id: 1 },
};

/** Language models published as OLMo 1. Source: OLMo team 2024; transformers' OlmoForCausalLM. */
export class Olmo extends RotaryLM {
  /** Throws DS_ARGUMENT for an unknown option and for invalid sizes. */
  constructor(options: OlmoConfig) {
    super(TRAITS, options);
  }

  /** @internal Describes the family for models.fromPretrained(). */
  static readonly family = rotaryFamily(TRAITS, (config: OlmoConfig) => new Olmo(config));
}
