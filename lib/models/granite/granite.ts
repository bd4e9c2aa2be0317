// Granite 3: Llama with factors of the embedding, scores, branches and logits.
import type { FamilyConfig } from '../rotary/config.js';
import { RotaryLM, rotaryFamily } from '../rotary/rotary-lm.js';
import type { RotaryTraits } from '../rotary/traits.js';

/** Options of Granite: sizes, and the mode of its activations. */
export type GraniteConfig = FamilyConfig<'attentionBias' | 'mlpBias' | 'scales'>;

const TRAITS: RotaryTraits = {
  name: 'Granite',
  modelType: 'granite',
  architecture: 'GraniteForCausalLM',
  biases: { qkv: 'attentionBias', out: 'attentionBias', mlp: 'mlpBias' },
  window: 'none',
  scales: {
    scores: { key: 'attention_multiplier', fallback: 1 },
    embed: { key: 'embedding_multiplier', fallback: 1 },
    residual: { key: 'residual_multiplier', fallback: 1 },
    logits: { key: 'logits_scaling', power: -1, fallback: 1 },
  },
  defaults: { max_position_embeddings: 2048 },
};

/**
 * Language models published as Granite 3.0 to 3.3. Source: IBM 2024; transformers'
 * GraniteForCausalLM.
 */
export class Granite extends RotaryLM {
  /** Throws DS_ARGUMENT for an unknown option and for invalid sizes. */
  constructor(options: GraniteConfig) {
    super(TRAITS, options);
  }

  /** @internal Describes the family for models.fromPretrained(). */
  static readonly family = rotaryFamily(TRAITS, (config: GraniteConfig) => new Granite(config));
}
