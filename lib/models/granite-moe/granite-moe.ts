// GraniteMoE: Granite 3 with mixture-of-experts feed-forward blocks.
import type { FamilyConfig } from '../rotary/config.js';
import type { MoeConfig } from '../rotary/mixture.js';
import { RotaryLM, rotaryFamily } from '../rotary/rotary-lm.js';
import type { RotaryTraits } from '../rotary/traits.js';

/** Options of GraniteMoe: sizes, and the mode of its activations. */
export interface GraniteMoeConfig
  extends FamilyConfig<'attentionBias' | 'scales' | 'routerAuxLossCoef'> {
  /** The experts; their width defaults to `hidden`. */
  moe: Omit<MoeConfig, 'sharedHidden' | 'normalize' | 'denseLayers'>;
}

const TRAITS: RotaryTraits = {
  name: 'GraniteMoe',
  modelType: 'granitemoe',
  architecture: 'GraniteMoeForCausalLM',
  biases: { qkv: 'attentionBias', out: 'attentionBias', mlp: false },
  window: 'none',
  scales: {
    scores: { key: 'attention_multiplier', fallback: 1 },
    embed: { key: 'embedding_multiplier', fallback: 1 },
    residual: { key: 'residual_multiplier', fallback: 1 },
    logits: { key: 'logits_scaling', power: -1, fallback: 1 },
  },
  moe: {
    experts: ['num_local_experts', 8],
    perToken: 2,
    hidden: 'intermediate_size',
    shared: false,
    choosesNorm: false,
    choosesLayers: false,
    files: {
      block: 'block_sparse_moe',
      router: 'router.layer',
      gateUp: 'input_linear',
      allDown: 'output_linear',
    },
  },
  defaults: { max_position_embeddings: 2048 },
};

/**
 * Language models published as Granite 3.0 and 3.1 MoE. Source: IBM 2024; transformers'
 * GraniteMoeForCausalLM.
 */
export class GraniteMoe extends RotaryLM {
  /** Throws DS_ARGUMENT for an unknown option and for invalid sizes. */
  constructor(options: GraniteMoeConfig) {
    super(TRAITS, options);
  }

  /** @internal Describes the family for models.fromPretrained(). */
  static readonly family = rotaryFamily(
    TRAITS,
    (config: GraniteMoeConfig) => new GraniteMoe(config),
  );
}
