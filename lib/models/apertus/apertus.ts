// Apertus: Llama with head norms, and xIELU in place of a gate.
import type { FamilyConfig } from '../rotary/config.js';
import { RotaryLM, rotaryFamily } from '../rotary/rotary-lm.js';
import type { RotaryTraits } from '../rotary/traits.js';

/** Options of Apertus: sizes, and the mode of its activations. */
export type ApertusConfig = FamilyConfig<'attentionBias'>;

const TRAITS: RotaryTraits = {
  name: 'Apertus',
  modelType: 'apertus',
  architecture: 'ApertusForCausalLM',
  biases: { qkv: 'attentionBias', out: 'attentionBias', mlp: false },
  qkNorm: 'head',
  norm: {
    eps: ['rms_norm_eps', 1e-5],
    block: { attention: ['attention_layernorm', null], mlp: ['feedforward_layernorm', null] },
  },
  activation: { kind: 'xielu', names: ['xielu'] },
  feed: { first: 'up_proj', second: 'down_proj' },
  window: 'none',
  only: { mlp_bias: [false], post_norm: [false], qk_norm: [true] },
  defaults: {
    max_position_embeddings: 65_536,
    pad_token_id: 3,
    intermediate_size: 14_336,
    rope_theta: 12e6,
  },
};

/**
 * Language models published as Apertus 8B, 70B. Source: Swiss AI Initiative 2025; transformers'
 * ApertusForCausalLM.
 */
export class Apertus extends RotaryLM {
  /** Throws DS_ARGUMENT for an unknown option and for invalid sizes. */
  constructor(options: ApertusConfig) {
    super(TRAITS, options);
  }

  /** @internal Describes the family for models.fromPretrained(). */
  static readonly family = rotaryFamily(TRAITS, (config: ApertusConfig) => new Apertus(config));
}
