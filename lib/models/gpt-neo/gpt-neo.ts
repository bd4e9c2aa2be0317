// GPT-Neo: learned positions, unscaled scores, and a window in every second layer.
import type { FamilyConfig } from '../rotary/config.js';
import { RotaryLM, rotaryFamily } from '../rotary/rotary-lm.js';
import type { RotaryTraits } from '../rotary/traits.js';

/** Options of GptNeo: sizes, and the mode of its activations. */
export type GptNeoConfig = FamilyConfig<'window' | 'residualDropout'>;

const TRAITS: RotaryTraits = {
  name: 'GptNeo',
  modelType: 'gpt_neo',
  architecture: 'GPTNeoForCausalLM',
  biases: { qkv: false, out: true, mlp: true },
  norm: {
    kind: 'layer',
    eps: ['layer_norm_epsilon', 1e-5],
    last: 'ln_f',
    block: { attention: ['ln_1', null], mlp: ['ln_2', null] },
  },
  activation: {
    kind: 'geluTanh',
    key: 'activation_function',
    names: ['gelu_new', 'gelu_pytorch_tanh'],
  },
  names: { model: 'transformer', embed: 'wte', layers: 'h', attention: 'attn.attention' },
  positions: { table: 'wpe', offset: 0 },
  out: 'out_proj',
  feed: { first: 'c_fc', second: 'c_proj' },
  scales: { scores: 1 },
  residualDropout: 'resid_dropout',
  window: 'layers',
  attentionTypes: { full: 'global', window: 'local' },
  slidesAt: (layer) => layer % 2 === 1,
  keys: {
    num_hidden_layers: 'num_layers',
    num_attention_heads: 'num_heads',
    sliding_window: 'window_size',
  },
  only: { embed_dropout: [0] },
  defaults: {
    max_position_embeddings: 2048,
    vocab_size: 50_257,
    sliding_window: 256,
    hidden_size: 2048,
    num_hidden_layers: 24,
    num_attention_heads: 16,
    tie_word_embeddings: true,
  },
};

/**
 * Language models published as GPT-Neo 125M to 2.7B. Source: Black et al. 2021; transformers'
 * GPTNeoForCausalLM.
 */
export class GptNeo extends RotaryLM {
  /** Throws DS_ARGUMENT for an unknown option and for invalid sizes. */
  constructor(options: GptNeoConfig) {
    super(TRAITS, options);
  }

  /** @internal Describes the family for models.fromPretrained(). */
  static readonly family = rotaryFamily(TRAITS, (config: GptNeoConfig) => new GptNeo(config));
}
