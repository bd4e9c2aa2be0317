// Arcee: Llama with a squared ReLU in place of a gate.
import type { FamilyConfig } from '../rotary/config.js';
import { RotaryLM, rotaryFamily } from '../rotary/rotary-lm.js';
import type { RotaryTraits } from '../rotary/traits.js';

/** Options of Arcee: sizes, and the mode of its activations. */
export type ArceeConfig = FamilyConfig<'attentionBias' | 'mlpBias'>;

const TRAITS: RotaryTraits = {
  name: 'Arcee',
  modelType: 'arcee',
  architecture: 'ArceeForCausalLM',
  biases: { qkv: 'attentionBias', out: 'attentionBias', mlp: 'mlpBias' },
  norm: { eps: ['rms_norm_eps', 1e-5] },
  activation: { kind: 'relu2', names: ['relu2'] },
  feed: { first: 'up_proj', second: 'down_proj' },
  window: 'none',
  defaults: { max_position_embeddings: 4096, intermediate_size: 18_432 },
};

/** Language models published as AFM 4.5B. Source: Arcee AI 2025; transformers' ArceeForCausalLM. */
export class Arcee extends RotaryLM {
  /** Throws DS_ARGUMENT for an unknown option and for invalid sizes. */
  constructor(options: ArceeConfig) {
    super(TRAITS, options);
  }

  /** @internal Describes the family for models.fromPretrained(). */
  static readonly family = rotaryFamily(TRAITS, (config: ArceeConfig) => new Arcee(config));
}
