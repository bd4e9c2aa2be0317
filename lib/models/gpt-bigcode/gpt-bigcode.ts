// StarCoder and SantaCoder: learned positions, and one key head for all queries.
import type { FamilyConfig } from '../rotary/config.js';
import { RotaryLM, rotaryFamily } from '../rotary/rotary-lm.js';
import type { RotaryTraits } from '../rotary/traits.js';

/** Options of GptBigCode: sizes, and the mode of its activations. */
export type GptBigCodeConfig = FamilyConfig<'residualDropout'>;

const TRAITS: RotaryTraits = {
  name: 'GptBigCode',
  modelType: 'gpt_bigcode',
  architecture: 'GPTBigCodeForCausalLM',
  biases: { qkv: true, out: true, mlp: true },
  norm: {
    kind: 'layer',
    eps: ['layer_norm_epsilon', 1e-5],
    last: 'ln_f',
    block: { attention: ['ln_1', null], mlp: ['ln_2', null] },
  },
  activation: {
    kind: 'geluTanh',
    key: 'activation_function',
    names: ['gelu_pytorch_tanh', 'gelu_new', 'gelu_fast'],
  },
  names: { model: 'transformer', embed: 'wte', layers: 'h', attention: 'attn', qkv: 'c_attn' },
  positions: { table: 'wpe', offset: 0 },
  packed: true,
  keyHeads: 1,
  out: 'c_proj',
  feed: { first: 'c_fc', second: 'c_proj' },
  residualDropout: 'resid_pdrop',
  window: 'none',
  keys: {
    num_hidden_layers: 'n_layer',
    num_attention_heads: 'n_head',
    hidden_size: 'n_embd',
    intermediate_size: 'n_inner',
    max_position_embeddings: 'n_positions',
    attention_dropout: 'attn_pdrop',
  },
  only: { multi_query: [true], scale_attn_weights: [true] },
  defaults: {
    max_position_embeddings: 1024,
    vocab_size: 50_257,
    tie_word_embeddings: true,
    attention_dropout: 0.1,
    resid_pdrop: 0.1,
  },
};

/**
 * Language models published as StarCoder, SantaCoder. Source: Li et al. 2023; transformers'
 * GPTBigCodeForCausalLM.
 */
export class GptBigCode extends RotaryLM {
  /** Throws DS_ARGUMENT for an unknown option and for invalid sizes. */
  constructor(options: GptBigCodeConfig) {
    super(TRAITS, options);
  }

  /** @internal Describes the family for models.fromPretrained(). */
  static readonly family = rotaryFamily(
    TRAITS,
    (config: GptBigCodeConfig) => new GptBigCode(config),
  );
}
