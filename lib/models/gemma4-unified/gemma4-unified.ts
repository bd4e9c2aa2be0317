// Gemma 4 12B, text: Gemma 4 without further embeddings of tokens and without experts.
import type { Gemma4Config } from '../gemma4/gemma4.js';
import { RotaryLM, rotaryFamily } from '../rotary/rotary-lm.js';
import { COMMON_ROPE, NORMS_AROUND, type RotaryTraits } from '../rotary/traits.js';

/** Options of Gemma4Unified: sizes, and the mode of its activations. */
export type Gemma4UnifiedConfig = Omit<Gemma4Config, 'moe'>;

const TRAITS: RotaryTraits = {
  name: 'Gemma4Unified',
  modelType: 'gemma4_unified_text',
  textOf: ['gemma4_unified'],
  overflowsF16: true,
  architecture: 'Gemma4UnifiedForCausalLM',
  biases: { qkv: 'attentionBias', out: 'attentionBias', mlp: false },
  qkNorm: 'head',
  layerKinds: true,
  norm: { block: NORMS_AROUND },
  activation: { kind: 'geluTanh', key: 'hidden_activation', names: ['gelu_pytorch_tanh'] },
  window: 'layers',
  windowEvery: [null, 6],
  rope: {
    ...COMMON_ROPE,
    types: ['proportional'],
    sectionsOnly: true,
    ofWindows: { key: null, fallback: 10_000 },
  },
  scales: {
    embed: 'rootChannels',
    scores: 1,
    logitCap: { key: 'final_logit_softcapping', fallback: null },
  },
  // Only images would see later tokens.
  only: { use_bidirectional_attention: ['vision'], hidden_size_per_layer_input: [0] },
  defaults: {
    vocab_size: 262_144,
    hidden_size: 2304,
    intermediate_size: 9216,
    head_dim: 256,
    num_hidden_layers: 30,
    num_attention_heads: 8,
    num_key_value_heads: 4,
    max_position_embeddings: 262_144,
    sliding_window: 1024,
    pad_token_id: 0,
    tie_word_embeddings: true,
    hidden_size_per_layer_input: 0,
    rope_parameters: {
      full_attention: { rope_type: 'proportional', partial_rotary_factor: 0.25, rope_theta: 1e6 },
      sliding_attention: { rope_type: 'default', rope_theta: 10_000 },
    },
  },
};

/**
 * Language models published as Gemma 4 12B; the text part. Source: Gemma team 2026; transformers'
 * Gemma4UnifiedForCausalLM.
 */
export class Gemma4Unified extends RotaryLM {
  /** Throws DS_ARGUMENT for an unknown option and for invalid sizes. */
  constructor(options: Gemma4UnifiedConfig) {
    super(TRAITS, options);
  }

  /** @internal Describes the family for models.fromPretrained(). */
  static readonly family = rotaryFamily(
    TRAITS,
    (config: Gemma4UnifiedConfig) => new Gemma4Unified(config),
  );
}
