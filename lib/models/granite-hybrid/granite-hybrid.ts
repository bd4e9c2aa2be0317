// Granite 4: Granite with joined gate and up projections, state space layers and experts.
import type { FamilyConfig } from '../rotary/config.js';
import type { MoeConfig } from '../rotary/mixture.js';
import { RotaryLM, rotaryFamily } from '../rotary/rotary-lm.js';
import { COMMON_ROPE, type RotaryTraits } from '../rotary/traits.js';

/** Options of GraniteHybrid: sizes, and the mode of its activations. */
export interface GraniteHybridConfig
  extends FamilyConfig<'attentionBias' | 'scales' | 'mamba' | 'ropeLayers' | 'routerAuxLossCoef'> {
  /** The experts, beside a dense block of the model's `hidden`. Default: none. */
  moe?: Omit<MoeConfig, 'sharedHidden' | 'normalize' | 'denseLayers'>;
}

const TRAITS: RotaryTraits = {
  name: 'GraniteHybrid',
  modelType: 'granitemoehybrid',
  architecture: 'GraniteMoeHybridForCausalLM',
  biases: { qkv: 'attentionBias', out: 'attentionBias', mlp: false },
  window: 'none',
  feed: 'packed',
  scales: {
    scores: { key: 'attention_multiplier', fallback: 1 },
    embed: { key: 'embedding_multiplier', fallback: 1 },
    residual: { key: 'residual_multiplier', fallback: 1 },
    logits: { key: 'logits_scaling', power: -1, fallback: 1 },
  },
  mamba: { layers: 'layer_types' },
  rope: { ...COMMON_ROPE, off: 'unnamed' },
  moe: {
    experts: ['num_local_experts', 8],
    optional: true,
    perToken: 2,
    hidden: 'moe_intermediate_size',
    shared: 'joined',
    choosesNorm: false,
    choosesLayers: false,
    files: {
      block: 'block_sparse_moe',
      router: 'router.layer',
      gateUp: 'input_linear',
      allDown: 'output_linear',
      shared: 'shared_mlp',
    },
  },
  files: {
    'model.layers.*.mlp.gate_up_proj.weight': 'model.layers.*.shared_mlp.input_linear.weight',
    'model.layers.*.mlp.down_proj.weight': 'model.layers.*.shared_mlp.output_linear.weight',
  },
  keys: {
    intermediate_size: 'shared_intermediate_size',
    moe_intermediate_size: 'intermediate_size',
  },
  defaults: {
    max_position_embeddings: 2048,
    intermediate_size: 1024,
    moe_intermediate_size: 11_008,
  },
};

/**
 * Language models published as Granite 4.0. Source: IBM 2025; transformers'
 * GraniteMoeHybridForCausalLM.
 */
export class GraniteHybrid extends RotaryLM {
  /** Throws DS_ARGUMENT for an unknown option and for invalid sizes. */
  constructor(options: GraniteHybridConfig) {
    super(TRAITS, options);
  }

  /** @internal Describes the family for models.fromPretrained(). */
  static readonly family = rotaryFamily(
    TRAITS,
    (config: GraniteHybridConfig) => new GraniteHybrid(config),
  );
}
