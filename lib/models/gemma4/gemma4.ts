// Gemma 4, text: wide heads in layers without a window, shared keys, and embeddings by layer.
import type { FamilyConfig } from '../rotary/config.js';
import { RotaryLM, rotaryFamily } from '../rotary/rotary-lm.js';
import { COMMON_ROPE, NORMS_AROUND, type RotaryTraits } from '../rotary/traits.js';

/** Options of Gemma4: sizes, and the mode of its activations. */
export type Gemma4Config = FamilyConfig<
  | 'attentionBias'
  | 'window'
  | 'windowRopeTheta'
  | 'scales'
  | 'full'
  | 'sharedKeys'
  | 'layerInputDim'
  | 'moe'
>;

const TRAITS: RotaryTraits = {
  name: 'Gemma4',
  modelType: 'gemma4_text',
  textOf: ['gemma4'],
  overflowsF16: true,
  architecture: 'Gemma4ForCausalLM',
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
  moe: {
    experts: ['num_experts', 128],
    perToken: 8,
    perTokenKey: 'top_k_experts',
    hidden: 'moe_intermediate_size',
    shared: false,
    choosesNorm: false,
    choosesLayers: false,
    beside: 'enable_moe_block',
    files: null,
  },
  // Only images would see later tokens.
  only: { use_bidirectional_attention: ['vision'] },
  defaults: {
    // Multimodal files omit sizes that have these values.
    vocab_size: 262_144,
    hidden_size: 2304,
    intermediate_size: 9216,
    head_dim: 256,
    num_hidden_layers: 30,
    num_attention_heads: 8,
    num_key_value_heads: 4,
    max_position_embeddings: 131_072,
    sliding_window: 512,
    pad_token_id: 0,
    tie_word_embeddings: true,
    hidden_size_per_layer_input: 256,
    rope_parameters: {
      full_attention: { rope_type: 'proportional', partial_rotary_factor: 0.25, rope_theta: 1e6 },
      sliding_attention: { rope_type: 'default', rope_theta: 10_000 },
    },
  },
};

/**
 * Language models published as Gemma 4 E2B, E4B, 31B, 26B-A4B; the text part. Source: Gemma team
 * 2026; transformers' Gemma4ForCausalLM.
 */
export class Gemma4 extends RotaryLM {
  /** Throws DS_ARGUMENT for an unknown option and for invalid sizes. */
  constructor(options: Gemma4Config) {
    super(TRAITS, options);
  }

  /** @internal Describes the family for models.fromPretrained(). */
  static readonly family = rotaryFamily(TRAITS, (config: Gemma4Config) => new Gemma4(config));
}
