// OLMo 3: OLMo 2 with a window in three of four layers, which have unscaled positions.
import type { FamilyConfig } from '../rotary/config.js';
import { RotaryLM, rotaryFamily } from '../rotary/rotary-lm.js';
import { COMMON_ROPE, POST_NORMS, type RotaryTraits } from '../rotary/traits.js';

/** Options of Olmo3: sizes, and the mode of its activations. */
export type Olmo3Config = FamilyConfig<'attentionBias' | 'window' | 'windowRopeTheta'>;

const TRAITS: RotaryTraits = {
  name: 'Olmo3',
  modelType: 'olmo3',
  architecture: 'Olmo3ForCausalLM',
  biases: { qkv: 'attentionBias', out: 'attentionBias', mlp: false },
  qkNorm: 'whole',
  norm: { eps: ['rms_norm_eps', 1e-5], block: POST_NORMS },
  window: 'layers',
  windowEvery: [null, 4],
  rope: { ...COMMON_ROPE, ofWindows: { key: null, fallback: 500_000 } },
  defaults: {
    max_position_embeddings: 2048,
    pad_token_id: 1,
    rope_theta: 500_000,
    sliding_window: 4096,
  },
};

/** Language models published as OLMo 3. Source: OLMo team 2025; transformers' Olmo3ForCausalLM. */
export class Olmo3 extends RotaryLM {
  /** Throws DS_ARGUMENT for an unknown option and for invalid sizes. */
  constructor(options: Olmo3Config) {
    super(TRAITS, options);
  }

  /** @internal Describes the family for models.fromPretrained(). */
  static readonly family = rotaryFamily(TRAITS, (config: Olmo3Config) => new Olmo3(config));
}
