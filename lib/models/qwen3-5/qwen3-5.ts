// Qwen3.5: gated delta nets, and gated attention in every fourth layer.
import type { FamilyConfig } from '../rotary/config.js';
import type { DeltaSizes } from '../rotary/delta-config.js';
import { RotaryLM, rotaryFamily } from '../rotary/rotary-lm.js';
import { COMMON_ROPE, type RotaryTraits } from '../rotary/traits.js';

/** Options of Qwen35: sizes, and the mode of its activations. */
export interface Qwen35Config
  extends FamilyConfig<'attentionBias' | 'partialRotaryFactor' | 'delta'> {
  /** The layers of gated delta nets. */
  delta: DeltaSizes;
}

const TRAITS: RotaryTraits = {
  name: 'Qwen35',
  modelType: 'qwen3_5_text',
  textOf: ['qwen3_5'],
  architecture: 'Qwen3_5ForCausalLM',
  biases: { qkv: 'attentionBias', out: 'attentionBias', mlp: false },
  qkNorm: 'head',
  gated: true,
  norm: { offset: true },
  window: 'none',
  hasPredictors: true,
  delta: { joined: false },
  rope: {
    ...COMMON_ROPE,
    partial: true,
    partialFallback: 0.25,
    ofPictures: ['mrope_section', 'mrope_interleaved'],
  },
  only: { attn_output_gate: [true] },
  defaults: {
    head_dim: 256,
    max_position_embeddings: 32_768,
    num_key_value_heads: 4,
    intermediate_size: 12_288,
  },
};

/**
 * Language models published as Qwen3.5 and 3.6, dense; the text part. Source: Qwen team 2026;
 * transformers' Qwen3_5ForCausalLM.
 */
export class Qwen35 extends RotaryLM {
  /** Throws DS_ARGUMENT for an unknown option and for invalid sizes. */
  constructor(options: Qwen35Config) {
    super(TRAITS, options);
  }

  /** @internal Describes the family for models.fromPretrained(). */
  static readonly family = rotaryFamily(TRAITS, (config: Qwen35Config) => new Qwen35(config));
}
