// OLMoE: OLMo with experts in each layer, and norms over all heads of queries and keys.
import type { FamilyConfig } from '../rotary/config.js';
import { type MoeConfig, QWEN_FILES } from '../rotary/mixture.js';
import { RotaryLM, rotaryFamily } from '../rotary/rotary-lm.js';
import type { RotaryTraits } from '../rotary/traits.js';

/** Options of Olmoe: sizes, and the mode of its activations. */
export interface OlmoeConfig extends FamilyConfig<'attentionBias' | 'routerAuxLossCoef'> {
  /** The experts. */
  moe: MoeConfig;
}

const TRAITS: RotaryTraits = {
  name: 'Olmoe',
  modelType: 'olmoe',
  architecture: 'OlmoeForCausalLM',
  biases: { qkv: 'attentionBias', out: 'attentionBias', mlp: false },
  qkNorm: 'whole',
  norm: { eps: ['rms_norm_eps', 1e-5] },
  window: 'none',
  moe: {
    experts: ['num_experts', 64],
    perToken: 8,
    hidden: 'intermediate_size',
    shared: false,
    choosesNorm: true,
    choosesLayers: false,
    files: QWEN_FILES,
  },
  only: { clip_qkv: [null] },
  defaults: {
    max_position_embeddings: 4096,
    intermediate_size: 2048,
    pad_token_id: 1,
    router_aux_loss_coef: 0.01,
  },
};

/**
 * Language models published as OLMoE 1B-7B. Source: Muennighoff et al. 2024; transformers'
 * OlmoeForCausalLM.
 */
export class Olmoe extends RotaryLM {
  /** Throws DS_ARGUMENT for an unknown option and for invalid sizes. */
  constructor(options: OlmoeConfig) {
    super(TRAITS, options);
  }

  /** @internal Describes the family for models.fromPretrained(). */
  static readonly family = rotaryFamily(TRAITS, (config: OlmoeConfig) => new Olmoe(config));
}
