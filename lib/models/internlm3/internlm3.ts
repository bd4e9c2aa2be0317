// InternLM3: Llama without biases.
import type { FamilyConfig } from '../rotary/config.js';
import { RotaryLM, rotaryFamily } from '../rotary/rotary-lm.js';
import type { RotaryTraits } from '../rotary/traits.js';

/** Options of InternLm3: sizes, and the mode of its activations. */
export type InternLm3Config = FamilyConfig;

const TRAITS: RotaryTraits = {
  name: 'InternLm3',
  modelType: 'internlm3',
  architecture: 'InternLM3ForCausalLM',
  biases: { qkv: false, out: false, mlp: false },
  window: 'none',
  only: { bias: [false], qkv_bias: [false] },
  defaults: { max_position_embeddings: 32_768, intermediate_size: 11_008 },
};

/**
 * Language models published as InternLM3 8B. Source: Shanghai AI Laboratory 2025; its
 * modeling_internlm3.py.
 */
export class InternLm3 extends RotaryLM {
  /** Throws DS_ARGUMENT for an unknown option and for invalid sizes. */
  constructor(options: InternLm3Config) {
    super(TRAITS, options);
  }

  /** @internal Describes the family for models.fromPretrained(). */
  static readonly family = rotaryFamily(TRAITS, (config: InternLm3Config) => new InternLm3(config));
}
