// Gemma 3n, text: several versions of the stream, low-rank residuals, sparse gates, shared keys.
import type { FamilyConfig } from '../rotary/config.js';
import { RotaryLM, rotaryFamily } from '../rotary/rotary-lm.js';
import { COMMON_ROPE, NORMS_AROUND, type RotaryTraits } from '../rotary/traits.js';

/** Options of Gemma3n: sizes, and the mode of its activations. */
export type Gemma3nConfig = FamilyConfig<
  | 'attentionBias'
  | 'window'
  | 'windowRopeTheta'
  | 'scales'
  | 'sharedKeys'
  | 'layerInputDim'
  | 'altUp'
>;

const TRAITS: RotaryTraits = {
  name: 'Gemma3n',
  modelType: 'gemma3n_text',
  textOf: ['gemma3n'],
  overflowsF16: true,
  architecture: 'Gemma3nForCausalLM',
  biases: { qkv: 'attentionBias', out: 'attentionBias', mlp: false },
  qkNorm: 'head',
  layerKinds: true,
  altUp: true,
  norm: { block: NORMS_AROUND },
  activation: { kind: 'geluTanh', key: 'hidden_activation', names: ['gelu_pytorch_tanh'] },
  window: 'layers',
  windowEvery: [null, 5],
  rope: { ...COMMON_ROPE, ofWindows: { key: 'rope_local_base_freq', fallback: 10_000 } },
  scales: {
    embed: 'rootChannels',
    scores: 1,
    logitCap: { key: 'final_logit_softcapping', fallback: 30 },
  },
  defaults: {
    // Multimodal files omit sizes that have these values.
    vocab_size: 262_400,
    hidden_size: 2048,
    intermediate_size: 16_384,
    num_hidden_layers: 35,
    num_attention_heads: 8,
    num_key_value_heads: 2,
    head_dim: 256,
    max_position_embeddings: 32_768,
    rope_theta: 1_000_000,
    sliding_window: 512,
    pad_token_id: 0,
    tie_word_embeddings: true,
    num_kv_shared_layers: 15,
    hidden_size_per_layer_input: 256,
  },
};

/**
 * Language models published as Gemma 3n E2B, E4B; the text part. Source: Gemma team 2025;
 * transformers' Gemma3nForCausalLM.
 */
export class Gemma3n extends RotaryLM {
  /** Throws DS_ARGUMENT for an unknown option and for invalid sizes. */
  constructor(options: Gemma3nConfig) {
    super(TRAITS, options);
  }

  /** @internal Describes the family for models.fromPretrained(). */
  static readonly family = rotaryFamily(TRAITS, (config: Gemma3nConfig) => new Gemma3n(config));
}
