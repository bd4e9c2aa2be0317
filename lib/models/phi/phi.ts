// Phi-1, 1.5 and 2: parallel branches, layer norms, biases, and GELU without a gate.
import type { FamilyConfig } from '../rotary/config.js';
import { RotaryLM, rotaryFamily } from '../rotary/rotary-lm.js';
import { COMMON_ROPE, ONE_NORM, type RotaryTraits } from '../rotary/traits.js';

/** Options of Phi: sizes, and the mode of its activations. */
export type PhiConfig = FamilyConfig<'partialRotaryFactor' | 'residualDropout'>;

const TRAITS: RotaryTraits = {
  name: 'Phi',
  modelType: 'phi',
  architecture: 'PhiForCausalLM',
  biases: { qkv: true, out: true, mlp: true, head: true },
  norm: { kind: 'layer', eps: ['layer_norm_eps', 1e-5], last: 'final_layernorm' },
  parallel: { key: null, block: ONE_NORM },
  activation: { kind: 'geluTanh', names: ['gelu_new', 'gelu_pytorch_tanh'] },
  feed: { first: 'fc1', second: 'fc2' },
  out: 'dense',
  window: 'none',
  rope: { ...COMMON_ROPE, partial: true, partialFallback: 0.5 },
  residualDropout: 'resid_pdrop',
  only: { qk_layernorm: [false], embd_pdrop: [0], tie_word_embeddings: [false] },
  defaults: { max_position_embeddings: 2048 },
};

/**
 * Language models published as Phi-1, 1.5, 2. Source: Gunasekar et al. 2023, Li et al. 2023;
 * transformers' PhiForCausalLM.
 */
export class Phi extends RotaryLM {
  /** Throws DS_ARGUMENT for an unknown option and for invalid sizes. */
  constructor(options: PhiConfig) {
    super(TRAITS, options);
  }

  /** @internal Describes the family for models.fromPretrained(). */
  static readonly family = rotaryFamily(TRAITS, (config: PhiConfig) => new Phi(config));
}
