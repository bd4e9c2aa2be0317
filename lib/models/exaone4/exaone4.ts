// EXAONE 4: norms after the branches, norms of heads, windows, and layers without positions.
import type { FamilyConfig } from '../rotary/config.js';
import { RotaryLM, rotaryFamily } from '../rotary/rotary-lm.js';
import { COMMON_ROPE, POST_NORMS, type RotaryTraits } from '../rotary/traits.js';

/** Options of Exaone4: sizes, and the mode of its activations. */
export type Exaone4Config = FamilyConfig<'window'>;

const TRAITS: RotaryTraits = {
  name: 'Exaone4',
  modelType: 'exaone4',
  architecture: 'Exaone4ForCausalLM',
  biases: { qkv: false, out: false, mlp: false },
  qkNorm: 'head',
  norm: { eps: ['rms_norm_eps', 1e-5], block: POST_NORMS },
  window: 'layers',
  windowEvery: ['sliding_window_pattern', 4],
  rope: { ...COMMON_ROPE, off: 'unwindowedIfMixed' },
  defaults: { max_position_embeddings: 2048, num_key_value_heads: 32, sliding_window: 4096 },
};

/**
 * Language models published as EXAONE 4. Source: LG AI Research 2025; transformers'
 * Exaone4ForCausalLM.
 */
export class Exaone4 extends RotaryLM {
  /** Throws DS_ARGUMENT for an unknown option and for invalid sizes. */
  constructor(options: Exaone4Config) {
    super(TRAITS, options);
  }

  /** @internal Describes the family for models.fromPretrained(). */
  static readonly family = rotaryFamily(TRAITS, (config: Exaone4Config) => new Exaone4(config));
}
