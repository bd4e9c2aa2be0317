// Llama 2 and 3.
import type { FamilyConfig } from '../rotary/config.js';
import { RotaryLM, rotaryFamily } from '../rotary/rotary-lm.js';
import { AROUND_TEXT, type RotaryTraits } from '../rotary/traits.js';

/** Options of Llama: sizes, and the mode of its activations. */
export type LlamaConfig = FamilyConfig<'attentionBias' | 'mlpBias'>;

const TRAITS: RotaryTraits = {
  name: 'Llama',
  modelType: 'llama',
  // mlx-lm's TeleChat 3 has the computation and the names of Llama. No model was compared.
  alsoTypes: { telechat3: {} },
  textOf: AROUND_TEXT,
  architecture: 'LlamaForCausalLM',
  biases: { qkv: 'attentionBias', out: 'attentionBias', mlp: 'mlpBias' },
  window: 'none',
  defaults: { max_position_embeddings: 2048 },
};

/**
 * Language models published as Llama 2, 3, 3.1, 3.2, 3.3 and models of this architecture. Source:
 * Touvron et al. 2023, Grattafiori et al. 2024; transformers' LlamaForCausalLM.
 */
export class Llama extends RotaryLM {
  /** Throws DS_ARGUMENT for an unknown option and for invalid sizes. */
  constructor(options: LlamaConfig) {
    super(TRAITS, options);
  }

  /** @internal Describes the family for models.fromPretrained(). */
  static readonly family = rotaryFamily(TRAITS, (config: LlamaConfig) => new Llama(config));
}
