// Granite 4, without state space layers: Granite with joined gate and up projections.
import type { FamilyConfig } from '../rotary/config.js';
import { RotaryLM, rotaryFamily } from '../rotary/rotary-lm.js';
import type { RotaryTraits } from '../rotary/traits.js';

/** Options of GraniteHybrid: sizes, and the mode of its activations. */
export type GraniteHybridConfig = FamilyConfig<'attentionBias' | 'scales'>;

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
  files: {
    'model.layers.*.mlp.gate_up_proj.weight': 'model.layers.*.shared_mlp.input_linear.weight',
    'model.layers.*.mlp.down_proj.weight': 'model.layers.*.shared_mlp.output_linear.weight',
  },
  keys: { intermediate_size: 'shared_intermediate_size' },
  // The second is the name of transformers 5.
  layerTypes: ['attention', 'full_attention'],
  only: { num_local_experts: [0], position_embedding_type: ['rope'] },
  written: { num_local_experts: 0, position_embedding_type: 'rope' },
  defaults: {
    max_position_embeddings: 2048,
    intermediate_size: 1024,
    num_local_experts: 8,
    layer_types: ['mamba'],
    position_embedding_type: 'nope',
  },
};

/**
 * Language models published as Granite 4.0 Micro, 350M, 1B. Source: IBM 2025; transformers'
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
