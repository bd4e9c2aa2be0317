// BLOOM: scores with linear biases, a norm of the embedding, and GELU without a gate.
import type { FamilyConfig } from '../rotary/config.js';
import { RotaryLM, rotaryFamily } from '../rotary/rotary-lm.js';
import type { RotaryTraits } from '../rotary/traits.js';

/** Options of Bloom: sizes, and the mode of its activations. */
export type BloomConfig = FamilyConfig<'residualDropout'>;

const TRAITS: RotaryTraits = {
  name: 'Bloom',
  modelType: 'bloom',
  architecture: 'BloomForCausalLM',
  biases: { qkv: true, out: true, mlp: true },
  norm: { kind: 'layer', eps: ['layer_norm_epsilon', 1e-5], last: 'ln_f' },
  activation: { kind: 'geluTanh', names: ['gelu_pytorch_tanh'] },
  names: {
    model: 'transformer',
    embed: 'word_embeddings',
    layers: 'h',
    embedNorm: 'word_embeddings_layernorm',
    attention: 'self_attention',
  },
  positions: 'alibi',
  perHead: 'query_key_value',
  out: 'dense',
  feed: { first: 'dense_h_to_4h', second: 'dense_4h_to_h' },
  residualDropout: 'hidden_dropout',
  window: 'none',
  keys: {
    num_hidden_layers: 'n_layer',
    num_attention_heads: 'n_head',
    max_position_embeddings: 'seq_length',
  },
  others: { n_head: 'num_attention_heads', hidden_size: 'n_embed', n_layer: 'num_hidden_layers' },
  only: { apply_residual_connection_post_layernorm: [false] },
  defaults: { max_position_embeddings: 2048, tie_word_embeddings: true },
};

/**
 * Language models published as BLOOM, BLOOMZ. Source: BigScience 2022; Press et al. 2022 (ALiBi);
 * transformers' BloomForCausalLM.
 */
export class Bloom extends RotaryLM {
  /** Throws DS_ARGUMENT for an unknown option and for invalid sizes. */
  constructor(options: BloomConfig) {
    super(TRAITS, options);
  }

  /** @internal Describes the family for models.fromPretrained(). */
  static readonly family = rotaryFamily(TRAITS, (config: BloomConfig) => new Bloom(config));
}
