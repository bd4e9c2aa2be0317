// LFM2: head norms, and gated short convolutions in most layers.
import type { FamilyConfig } from '../rotary/config.js';
import { RotaryLM, rotaryFamily } from '../rotary/rotary-lm.js';
import type { RotaryTraits } from '../rotary/traits.js';

/** Sizes of Lfm2, and the mode of its activations. */
export type Lfm2Config = FamilyConfig<'conv'>;

/** @internal Names of feed-forward blocks in the files. */
export const LFM2_FILES: Readonly<Record<string, string>> = Object.fromEntries(
  Object.entries({ gate_proj: 'w1', up_proj: 'w3', down_proj: 'w2' }).map(([own, theirs]) => [
    `model.layers.*.mlp.${own}.weight`,
    `model.layers.*.feed_forward.${theirs}.weight`,
  ]),
);

const TRAITS: RotaryTraits = {
  name: 'Lfm2',
  modelType: 'lfm2',
  textOf: ['lfm2_vl', 'lfm2-vl'],
  architecture: 'Lfm2ForCausalLM',
  biases: { qkv: false, out: false, mlp: false },
  qkNorm: 'head',
  conv: true,
  norm: {
    eps: ['norm_eps', 1e-5],
    block: { attention: ['operator_norm', null], mlp: ['ffn_norm', null] },
    last: 'embedding_norm',
  },
  window: 'none',
  names: { qNorm: 'q_layernorm', kNorm: 'k_layernorm' },
  out: 'out_proj',
  files: LFM2_FILES,
  others: { tie_embedding: 'tie_word_embeddings' },
  // The width has these changes already.
  written: { block_auto_adjust_ff_dim: false },
  defaults: {
    max_position_embeddings: 128_000,
    num_key_value_heads: 8,
    pad_token_id: 0,
    rope_theta: 1e6,
    block_auto_adjust_ff_dim: true,
    tie_word_embeddings: true,
  },
};

/**
 * Language models published as LFM2 and LFM2.5, 350M to 2.6B; the text part of LFM2-VL. Source:
 * Liquid AI 2025; transformers' Lfm2ForCausalLM.
 */
export class Lfm2 extends RotaryLM {
  /** Throws DS_ARGUMENT for an unknown option and for invalid sizes. */
  constructor(given: Lfm2Config) {
    super(TRAITS, given);
  }

  /** @internal Describes the family for models.fromPretrained(). */
  static readonly family = rotaryFamily(TRAITS, (config: Lfm2Config) => new Lfm2(config));
}
