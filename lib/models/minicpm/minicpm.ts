// MiniCPM: Llama with factors of the embedding, branches and logits.
import type { FamilyConfig } from '../rotary/config.js';
import { RotaryLM, rotaryFamily } from '../rotary/rotary-lm.js';
import type { RotaryTraits } from '../rotary/traits.js';

/** Options of MiniCpm: sizes, and the mode of its activations. */
export type MiniCpmConfig = FamilyConfig<'attentionBias' | 'scales'>;

const TRAITS: RotaryTraits = {
  name: 'MiniCpm',
  modelType: 'minicpm',
  architecture: 'MiniCPMForCausalLM',
  biases: { qkv: 'attentionBias', out: 'attentionBias', mlp: false },
  window: 'none',
  scales: {
    embed: { key: 'scale_emb', fallback: 1 },
    residual: { key: 'scale_depth', per: 'rootLayers', fallback: 1 },
    logits: { key: 'dim_model_base', per: 'channels', fallback: 1 },
  },
  only: { num_experts: [0], sparse_config: [null] },
  defaults: { max_position_embeddings: 2048, intermediate_size: 11_008, tie_word_embeddings: true },
};

/** Language models published as MiniCPM 1B, 2B. Source: Hu et al. 2024; its modeling_minicpm.py. */
export class MiniCpm extends RotaryLM {
  /** Throws DS_ARGUMENT for an unknown option and for invalid sizes. */
  constructor(options: MiniCpmConfig) {
    super(TRAITS, options);
  }

  /** @internal Describes the family for models.fromPretrained(). */
  static readonly family = rotaryFamily(TRAITS, (config: MiniCpmConfig) => new MiniCpm(config));
}
