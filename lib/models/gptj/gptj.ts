// GPT-J: parallel branches behind one norm, and neighbouring channels as pairs.
import type { FamilyConfig } from '../rotary/config.js';
import { RotaryLM, rotaryFamily } from '../rotary/rotary-lm.js';
import { type BlockNorms, COMMON_ROPE, type RotaryTraits } from '../rotary/traits.js';

/** Options of GptJ: sizes, and the mode of its activations. */
export type GptJConfig = FamilyConfig<'partialRotaryFactor'>;

/** A block with one norm before both branches. */
const BLOCK: BlockNorms = { attention: ['ln_1', null], mlp: [null, null] };

const TRAITS: RotaryTraits = {
  name: 'GptJ',
  modelType: 'gptj',
  architecture: 'GPTJForCausalLM',
  biases: { qkv: false, out: false, mlp: true, head: true },
  norm: { kind: 'layer', eps: ['layer_norm_epsilon', 1e-5], block: BLOCK, last: 'ln_f' },
  parallel: { key: null, block: BLOCK },
  activation: {
    kind: 'geluTanh',
    key: 'activation_function',
    names: ['gelu_new', 'gelu_pytorch_tanh'],
  },
  names: { model: 'transformer', embed: 'wte', layers: 'h', attention: 'attn' },
  out: 'out_proj',
  feed: { first: 'fc_in', second: 'fc_out' },
  window: 'none',
  rope: { ...COMMON_ROPE, partial: true, interleaved: true, width: ['rotary_dim', 64] },
  keys: {
    hidden_size: 'n_embd',
    intermediate_size: 'n_inner',
    num_hidden_layers: 'n_layer',
    num_attention_heads: 'n_head',
    max_position_embeddings: 'n_positions',
    attention_dropout: 'attn_pdrop',
  },
  only: { resid_pdrop: [0], embd_pdrop: [0], tie_word_embeddings: [false] },
  defaults: { max_position_embeddings: 2048 },
};

/**
 * Language models published as GPT-J 6B. Source: Wang and Komatsuzaki 2021; transformers'
 * GPTJForCausalLM.
 */
export class GptJ extends RotaryLM {
  /** Throws DS_ARGUMENT for an unknown option and for invalid sizes. */
  constructor(options: GptJConfig) {
    super(TRAITS, options);
  }

  /** @internal Describes the family for models.fromPretrained(). */
  static readonly family = rotaryFamily(TRAITS, (config: GptJConfig) => new GptJ(config));
}
