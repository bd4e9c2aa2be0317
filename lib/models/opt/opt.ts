// OPT: learned positions, layer norms before each branch or behind it, and ReLU without a gate.
import type { FamilyConfig } from '../rotary/config.js';
import { RotaryLM, rotaryFamily } from '../rotary/rotary-lm.js';
import type { RotaryTraits } from '../rotary/traits.js';

/** Options of Opt: sizes, and the mode of its activations. */
export type OptConfig = FamilyConfig<'attentionBias' | 'residualDropout' | 'sumNorms' | 'embedDim'>;

const ALL = 'attentionBias';

const TRAITS: RotaryTraits = {
  name: 'Opt',
  modelType: 'opt',
  architecture: 'OPTForCausalLM',
  biases: { qkv: ALL, out: ALL, mlp: ALL, key: 'enable_bias' },
  norm: {
    kind: 'layer',
    eps: ['layer_norm_eps', 1e-5],
    last: 'final_layer_norm',
    block: { attention: ['self_attn_layer_norm', null], mlp: ['final_layer_norm', null] },
  },
  activation: { kind: 'relu', key: 'activation_function', names: ['relu'] },
  names: { model: 'model.decoder' },
  positions: { table: 'embed_positions', offset: 2 },
  out: 'out_proj',
  feed: { first: 'fc1', second: 'fc2' },
  residualDropout: 'dropout',
  window: 'none',
  keys: { intermediate_size: 'ffn_dim', initializer_range: 'init_std' },
  files: Object.fromEntries(
    ['fc1.weight', 'fc1.bias', 'fc2.weight', 'fc2.bias'].map((name) => [
      `model.decoder.layers.*.mlp.${name}`,
      `model.decoder.layers.*.${name}`,
    ]),
  ),
  sums: { key: ['do_layer_norm_before', true], width: 'word_embed_proj_dim' },
  only: {
    _remove_final_layer_norm: [false],
    layerdrop: [0],
    layer_norm_elementwise_affine: [true],
    layer_norm_eps: [1e-5],
  },
  defaults: {
    max_position_embeddings: 2048,
    intermediate_size: 3072,
    dropout: 0.1,
    pad_token_id: 1,
    enable_bias: true,
    tie_word_embeddings: true,
  },
};

/**
 * Language models published as OPT 125M to 66B. Source: Zhang et al. 2022; transformers'
 * OPTForCausalLM.
 */
export class Opt extends RotaryLM {
  /** Throws DS_ARGUMENT for an unknown option and for invalid sizes. */
  constructor(options: OptConfig) {
    super(TRAITS, options);
  }

  /** @internal Describes the family for models.fromPretrained(). */
  static readonly family = rotaryFamily(TRAITS, (config: OptConfig) => new Opt(config));
}
