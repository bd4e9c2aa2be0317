// Qwen2 and 2.5: Llama with biases of queries, keys and values, and windows in some layers.
import type { FamilyConfig } from '../rotary/config.js';
import { RotaryLM, rotaryFamily } from '../rotary/rotary-lm.js';
import { AROUND_TEXT, COMMON_ROPE, type RotaryTraits } from '../rotary/traits.js';

/** Options of Qwen2: sizes, and the mode of its activations. */
export type Qwen2Config = FamilyConfig<'window'>;

const TRAITS: RotaryTraits = {
  name: 'Qwen2',
  modelType: 'qwen2',
  // MiMo has further layers that predict later tokens.
  alsoTypes: { mimo: {} },
  hasPredictors: 'apart',
  textOf: ['qwen2_vl', 'qwen2_5_vl', ...AROUND_TEXT],
  architecture: 'Qwen2ForCausalLM',
  biases: { qkv: true, out: false, mlp: false },
  window: 'layers',
  rope: {
    ...COMMON_ROPE,
    aliases: { ...COMMON_ROPE.aliases, mrope: 'default' },
    ofPictures: ['mrope_section', 'mrope_interleaved'],
  },
  defaults: {
    max_position_embeddings: 32_768,
    num_key_value_heads: 32,
    sliding_window: 4096,
    max_window_layers: 28,
  },
};

/**
 * Language models published as Qwen2, Qwen2.5. Source: Qwen team 2024; transformers'
 * Qwen2ForCausalLM.
 */
export class Qwen2 extends RotaryLM {
  /** Throws DS_ARGUMENT for an unknown option and for invalid sizes. */
  constructor(options: Qwen2Config) {
    super(TRAITS, options);
  }

  /** @internal Describes the family for models.fromPretrained(). */
  static readonly family = rotaryFamily(TRAITS, (config: Qwen2Config) => new Qwen2(config));
}
