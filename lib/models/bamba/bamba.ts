// Bamba: state space layers, and a few layers with attention that rotate half of the channels.
import type { FamilyConfig } from '../rotary/config.js';
import { RotaryLM, rotaryFamily } from '../rotary/rotary-lm.js';
import { COMMON_ROPE, type RotaryTraits } from '../rotary/traits.js';

/** Sizes of Bamba, and the mode of its activations. */
export type BambaConfig = FamilyConfig<
  'attentionBias' | 'mlpBias' | 'mamba' | 'partialRotaryFactor'
>;

/** Names of feed-forward layers in files, by their names here; also of Falcon-H1. */
export const BAMBA_FILES = Object.fromEntries(
  ['gate_proj', 'up_proj', 'down_proj'].flatMap((name) =>
    ['weight', 'bias'].map((part) => [
      `model.layers.*.mlp.${name}.${part}`,
      `model.layers.*.feed_forward.${name}.${part}`,
    ]),
  ),
);

const TRAITS: RotaryTraits = {
  name: 'Bamba',
  modelType: 'bamba',
  architecture: 'BambaForCausalLM',
  biases: { qkv: 'attentionBias', out: 'attentionBias', mlp: 'mlpBias' },
  mamba: { layers: 'attn_layer_indices' },
  norm: {
    eps: ['rms_norm_eps', 1e-5],
    block: { attention: ['input_layernorm', null], mlp: ['pre_ff_layernorm', null] },
    last: 'final_layernorm',
  },
  window: 'none',
  rope: { ...COMMON_ROPE, partial: true, partialFallback: 0.5 },
  files: BAMBA_FILES,
  only: { z_loss_coefficient: [0] },
  defaults: {
    max_position_embeddings: 262_144,
    num_key_value_heads: 8,
    intermediate_size: 14_336,
    pad_token_id: 0,
  },
};

/**
 * Language models published as Bamba 9B. Source: IBM, Princeton, CMU and UIUC 2024; transformers'
 * BambaForCausalLM.
 */
export class Bamba extends RotaryLM {
  /** Throws DS_ARGUMENT for an unknown option and for invalid sizes. */
  constructor(given: BambaConfig) {
    super(TRAITS, given);
  }

  /** @internal Describes the family for models.fromPretrained(). */
  static readonly family = rotaryFamily(TRAITS, (config: BambaConfig) => new Bamba(config));
}
