// Nemotron and Minitron: layer norms by 1 + weight, and a squared ReLU in place of a gate.
import type { FamilyConfig } from '../rotary/config.js';
import { RotaryLM, rotaryFamily } from '../rotary/rotary-lm.js';
import { COMMON_ROPE, type RotaryTraits } from '../rotary/traits.js';

/** Options of Nemotron: sizes, and the mode of its activations. */
export type NemotronConfig = FamilyConfig<'attentionBias' | 'mlpBias' | 'partialRotaryFactor'>;

const TRAITS: RotaryTraits = {
  name: 'Nemotron',
  modelType: 'nemotron',
  architecture: 'NemotronForCausalLM',
  biases: { qkv: 'attentionBias', out: 'attentionBias', mlp: 'mlpBias' },
  norm: { kind: 'layer', offset: true, eps: ['norm_eps', 1e-5] },
  activation: { kind: 'relu2', names: ['relu2'] },
  feed: { first: 'up_proj', second: 'down_proj' },
  window: 'none',
  rope: { ...COMMON_ROPE, partial: true, partialFallback: 0.5 },
  defaults: { max_position_embeddings: 4096, intermediate_size: 24_576, initializer_range: 0.0134 },
};

/**
 * Language models published as Nemotron-3 8B, Nemotron-Mini, Minitron. Source: Parmar et al. 2024,
 * Muralidharan et al. 2024; transformers' NemotronForCausalLM.
 */
export class Nemotron extends RotaryLM {
  /** Throws DS_ARGUMENT for an unknown option and for invalid sizes. */
  constructor(options: NemotronConfig) {
    super(TRAITS, options);
  }

  /** @internal Describes the family for models.fromPretrained(). */
  static readonly family = rotaryFamily(TRAITS, (config: NemotronConfig) => new Nemotron(config));
}
