// dots.llm1: norms of query and key heads, and the sigmoid router of DeepSeek.
import type { FamilyConfig } from '../rotary/config.js';
import { type MoeConfig, QWEN_FILES } from '../rotary/mixture.js';
import { RotaryLM, rotaryFamily } from '../rotary/rotary-lm.js';
import type { RotaryTraits } from '../rotary/traits.js';

/** Options of Dots1: sizes, and the mode of its activations. */
export interface Dots1Config extends FamilyConfig<'attentionBias' | 'window'> {
  /** The experts, including the shared ones. */
  moe: MoeConfig & { sharedHidden: number };
}

const TRAITS: RotaryTraits = {
  name: 'Dots1',
  modelType: 'dots1',
  architecture: 'Dots1ForCausalLM',
  biases: { qkv: 'attentionBias', out: 'attentionBias', mlp: false },
  qkNorm: 'head',
  window: 'layers',
  moe: {
    experts: ['n_routed_experts', 128],
    perToken: 6,
    hidden: 'moe_intermediate_size',
    shared: 'ungated',
    choosesNorm: true,
    choosesLayers: 'first',
    scores: 'sigmoid',
    files: QWEN_FILES,
  },
  defaults: {
    max_position_embeddings: 2048,
    num_key_value_heads: 32,
    sliding_window: 4096,
    use_sliding_window: true,
    max_window_layers: 62,
    intermediate_size: 10_944,
    moe_intermediate_size: 1408,
  },
};

/**
 * Language models published as dots.llm1. Source: rednote-hilab 2025; transformers'
 * Dots1ForCausalLM.
 */
export class Dots1 extends RotaryLM {
  /** Throws DS_ARGUMENT for an unknown option and for invalid sizes. */
  constructor(options: Dots1Config) {
    super(TRAITS, options);
  }

  /** @internal Describes the family for models.fromPretrained(). */
  static readonly family = rotaryFamily(TRAITS, (config: Dots1Config) => new Dots1(config));
}
