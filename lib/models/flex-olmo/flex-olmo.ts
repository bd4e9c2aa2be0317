// FlexOlmo: OLMo 2 with experts.
import type { FamilyConfig } from '../rotary/config.js';
import { type MoeConfig, QWEN_FILES } from '../rotary/mixture.js';
import { RotaryLM, rotaryFamily } from '../rotary/rotary-lm.js';
import { POST_NORMS, type RotaryTraits } from '../rotary/traits.js';

/** Options of FlexOlmo: sizes, and the mode of its activations. */
export interface FlexOlmoConfig extends FamilyConfig<'attentionBias' | 'routerAuxLossCoef'> {
  /** The experts. */
  moe: MoeConfig;
}

const TRAITS: RotaryTraits = {
  name: 'FlexOlmo',
  modelType: 'flex_olmo',
  architecture: 'FlexOlmoForCausalLM',
  biases: { qkv: 'attentionBias', out: 'attentionBias', mlp: false },
  qkNorm: 'whole',
  norm: { block: POST_NORMS },
  window: 'none',
  moe: {
    experts: ['num_experts', 7],
    perToken: 5,
    hidden: 'intermediate_size',
    shared: false,
    choosesNorm: true,
    choosesLayers: false,
    files: QWEN_FILES,
  },
  defaults: {
    max_position_embeddings: 4096,
    rope_theta: 500_000,
    intermediate_size: 11_008,
    pad_token_id: 100_277,
    router_aux_loss_coef: 0.01,
  },
};

/**
 * Language models published as FlexOlmo 7x7B. Source: Shi et al. 2025; transformers'
 * FlexOlmoForCausalLM.
 */
export class FlexOlmo extends RotaryLM {
  /** Throws DS_ARGUMENT for an unknown option and for invalid sizes. */
  constructor(options: FlexOlmoConfig) {
    super(TRAITS, options);
  }

  /** @internal Describes the family for models.fromPretrained(). */
  static readonly family = rotaryFamily(TRAITS, (config: FlexOlmoConfig) => new FlexOlmo(config));
}
