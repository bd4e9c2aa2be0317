// GPT-NeoX and Pythia: parallel branches with a norm each, layer norms, and GELU without a gate.
import type { FamilyConfig } from '../rotary/config.js';
import { RotaryLM, rotaryFamily } from '../rotary/rotary-lm.js';
import { COMMON_ROPE, PRE_NORMS, type RotaryTraits } from '../rotary/traits.js';

/** Options of GptNeoX: sizes, and the mode of its activations. */
export type GptNeoXConfig = FamilyConfig<'attentionBias' | 'partialRotaryFactor' | 'parallel'>;

const TRAITS: RotaryTraits = {
  name: 'GptNeoX',
  modelType: 'gpt_neox',
  architecture: 'GPTNeoXForCausalLM',
  biases: { qkv: 'attentionBias', out: 'attentionBias', mlp: true },
  norm: { kind: 'layer', eps: ['layer_norm_eps', 1e-5], last: 'final_layer_norm' },
  parallel: { key: ['use_parallel_residual', true], block: PRE_NORMS },
  activation: { kind: 'gelu', names: ['gelu'] },
  names: { model: 'gpt_neox', embed: 'embed_in', attention: 'attention', head: 'embed_out' },
  perHead: 'query_key_value',
  out: 'dense',
  feed: { first: 'dense_h_to_4h', second: 'dense_4h_to_h' },
  window: 'none',
  rope: {
    ...COMMON_ROPE,
    partial: true,
    partialFallback: 0.25,
    keys: { theta: 'rotary_emb_base', partial: 'rotary_pct' },
  },
  only: { hidden_dropout: [0] },
  defaults: { max_position_embeddings: 2048, attention_bias: true },
};

/**
 * Language models published as GPT-NeoX-20B, Pythia. Source: Black et al. 2022, Biderman et al.
 * 2023; transformers' GPTNeoXForCausalLM.
 */
export class GptNeoX extends RotaryLM {
  /** Throws DS_ARGUMENT for an unknown option and for invalid sizes. */
  constructor(options: GptNeoXConfig) {
    super(TRAITS, options);
  }

  /** @internal Describes the family for models.fromPretrained(). */
  static readonly family = rotaryFamily(TRAITS, (config: GptNeoXConfig) => new GptNeoX(config));
}
