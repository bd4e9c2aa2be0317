// Qwen3, dense: Llama with normalized queries and keys, and windows in some layers.
import type { FamilyConfig } from '../rotary/config.js';
import { RotaryLM, rotaryFamily } from '../rotary/rotary-lm.js';
import { AROUND_TEXT, COMMON_ROPE, type RotaryTraits } from '../rotary/traits.js';

/** Options of Qwen3: sizes, and the mode of its activations. */
export type Qwen3Config = FamilyConfig<'attentionBias' | 'window'>;

const TRAITS: RotaryTraits = {
  name: 'Qwen3',
  modelType: 'qwen3',
  textOf: ['qwen3_vl', ...AROUND_TEXT],
  architecture: 'Qwen3ForCausalLM',
  biases: { qkv: 'attentionBias', out: 'attentionBias', mlp: false },
  qkNorm: 'head',
  window: 'layers',
  rope: {
    ...COMMON_ROPE,
    aliases: { ...COMMON_ROPE.aliases, mrope: 'default' },
    ofPictures: ['mrope_section', 'mrope_interleaved'],
  },
  defaults: {
    max_position_embeddings: 32_768,
    num_key_value_heads: 32,
    head_dim: 128,
    sliding_window: 4096,
    max_window_layers: 28,
  },
};

/**
 * Language models published as Qwen3, dense. Source: Qwen team 2025; transformers'
 * Qwen3ForCausalLM.
 */
export class Qwen3 extends RotaryLM {
  /** Throws DS_ARGUMENT for an unknown option and for invalid sizes. */
  constructor(options: Qwen3Config) {
    super(TRAITS, options);
  }

  /** @internal Describes the family for models.fromPretrained(). */
  static readonly family = rotaryFamily(TRAITS, (config: Qwen3Config) => new Qwen3(config));
}
