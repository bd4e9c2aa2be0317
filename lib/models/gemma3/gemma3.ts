// Gemma 3, text: norms of queries and keys, a window in five of six layers.
import type { FamilyConfig } from '../rotary/config.js';
import { RotaryLM, rotaryFamily } from '../rotary/rotary-lm.js';
import { COMMON_ROPE, NORMS_AROUND, type RotaryTraits } from '../rotary/traits.js';

/** Options of Gemma3: sizes, and the mode of its activations. */
export type Gemma3Config = FamilyConfig<'attentionBias' | 'window' | 'windowRopeTheta' | 'scales'>;

const TRAITS: RotaryTraits = {
  name: 'Gemma3',
  modelType: 'gemma3_text',
  textOf: ['gemma3'],
  overflowsF16: true,
  architecture: 'Gemma3ForCausalLM',
  biases: { qkv: 'attentionBias', out: 'attentionBias', mlp: false },
  qkNorm: 'head',
  norm: { offset: true, block: NORMS_AROUND },
  activation: { kind: 'geluTanh', key: 'hidden_activation', names: ['gelu_pytorch_tanh'] },
  window: 'layers',
  windowEvery: ['sliding_window_pattern', 6],
  rope: { ...COMMON_ROPE, ofWindows: { key: 'rope_local_base_freq', fallback: 10_000 } },
  scales: {
    embed: 'rootChannels',
    scores: { key: 'query_pre_attn_scalar', power: -0.5, fallback: 256 },
    scoreCap: { key: 'attn_logit_softcapping', fallback: null },
    logitCap: { key: 'final_logit_softcapping', fallback: null },
  },
  defaults: {
    // Multimodal files omit sizes that have these values.
    vocab_size: 262_208,
    hidden_size: 2304,
    intermediate_size: 9216,
    num_hidden_layers: 26,
    num_attention_heads: 8,
    max_position_embeddings: 131_072,
    num_key_value_heads: 4,
    head_dim: 256,
    pad_token_id: 0,
    rope_theta: 1_000_000,
    sliding_window: 4096,
    tie_word_embeddings: true,
  },
};

/**
 * Language models published as Gemma 3 270M, 1B; the text part of larger ones. Source: Gemma team
 * 2025; transformers' Gemma3ForCausalLM.
 */
export class Gemma3 extends RotaryLM {
  /** Throws DS_ARGUMENT for an unknown option and for invalid sizes. */
  constructor(options: Gemma3Config) {
    super(TRAITS, options);
  }

  /** @internal Describes the family for models.fromPretrained(). */
  static readonly family = rotaryFamily(TRAITS, (config: Gemma3Config) => new Gemma3(config));
}
