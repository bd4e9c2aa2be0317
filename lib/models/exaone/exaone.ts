// EXAONE 3 and 3.5: Llama under other names.
import type { FamilyConfig } from '../rotary/config.js';
import { RotaryLM, rotaryFamily } from '../rotary/rotary-lm.js';
import { type RotaryTraits, SILU } from '../rotary/traits.js';

/** Options of Exaone: sizes, and the mode of its activations. */
export type ExaoneConfig = FamilyConfig;

const TRAITS: RotaryTraits = {
  name: 'Exaone',
  modelType: 'exaone',
  architecture: 'ExaoneForCausalLM',
  biases: { qkv: false, out: false, mlp: false },
  norm: {
    eps: ['layer_norm_epsilon', 1e-5],
    last: 'ln_f',
    block: { attention: ['ln_1', null], mlp: ['ln_2', null] },
  },
  activation: { ...SILU, key: 'activation_function' },
  names: { model: 'transformer', embed: 'wte', layers: 'h', attention: 'attn.attention' },
  out: 'out_proj',
  window: 'none',
  keys: { num_hidden_layers: 'num_layers' },
  others: { num_layers: 'num_hidden_layers' },
  files: Object.fromEntries(
    Object.entries({ gate_proj: 'c_fc_0', up_proj: 'c_fc_1', down_proj: 'c_proj' }).map(
      ([own, theirs]) => [
        `transformer.h.*.mlp.${own}.weight`,
        `transformer.h.*.mlp.${theirs}.weight`,
      ],
    ),
  ),
  only: { embed_dropout: [0] },
  defaults: { max_position_embeddings: 2048 },
};

/**
 * Language models published as EXAONE 3.0, 3.5, Deep. Source: LG AI Research 2024; its
 * modeling_exaone.py.
 */
export class Exaone extends RotaryLM {
  /** Throws DS_ARGUMENT for an unknown option and for invalid sizes. */
  constructor(options: ExaoneConfig) {
    super(TRAITS, options);
  }

  /** @internal Describes the family for models.fromPretrained(). */
  static readonly family = rotaryFamily(TRAITS, (config: ExaoneConfig) => new Exaone(config));
}
