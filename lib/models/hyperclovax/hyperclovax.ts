// HyperCLOVA X: Granite with norms after the branches.
import type { FamilyConfig } from '../rotary/config.js';
import { RotaryLM, rotaryFamily } from '../rotary/rotary-lm.js';
import type { RotaryTraits } from '../rotary/traits.js';

/** Options of HyperClovaX: sizes, and the mode of its activations. */
export type HyperClovaXConfig = FamilyConfig<'attentionBias' | 'mlpBias' | 'scales'>;

const TRAITS: RotaryTraits = {
  name: 'HyperClovaX',
  modelType: 'hyperclovax',
  architecture: 'HyperCLOVAXForCausalLM',
  biases: { qkv: 'attentionBias', out: 'attentionBias', mlp: 'mlpBias' },
  norm: {
    block: {
      attention: ['input_layernorm', 'post_norm1'],
      mlp: ['post_attention_layernorm', 'post_norm2'],
    },
  },
  window: 'none',
  scales: {
    scores: { key: 'attention_multiplier', fallback: null },
    embed: { key: 'embedding_multiplier', fallback: 1 },
    residual: { key: 'residual_multiplier', fallback: 1 },
    logits: { key: 'logits_scaling', fallback: 1 },
  },
  only: { use_post_norm: [true] },
  written: { use_post_norm: true },
  defaults: { max_position_embeddings: 2048, intermediate_size: 11_008 },
};

/**
 * Language models published as HyperCLOVA X SEED Think 14B. Source: NAVER 2025; transformers'
 * HyperCLOVAXForCausalLM.
 */
export class HyperClovaX extends RotaryLM {
  /** Throws DS_ARGUMENT for an unknown option and for invalid sizes. */
  constructor(options: HyperClovaXConfig) {
    super(TRAITS, options);
  }

  /** @internal Describes the family for models.fromPretrained(). */
  static readonly family = rotaryFamily(
    TRAITS,
    (config: HyperClovaXConfig) => new HyperClovaX(config),
  );
}
