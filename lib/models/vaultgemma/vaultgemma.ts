// VaultGemma: Gemma 2 without norms after the branches.
import type { FamilyConfig } from '../rotary/config.js';
import { RotaryLM, rotaryFamily } from '../rotary/rotary-lm.js';
import type { RotaryTraits } from '../rotary/traits.js';

/** Options of VaultGemma: sizes, and the mode of its activations. */
export type VaultGemmaConfig = FamilyConfig<'attentionBias' | 'window' | 'scales'>;

const TRAITS: RotaryTraits = {
  name: 'VaultGemma',
  modelType: 'vaultgemma',
  architecture: 'VaultGemmaForCausalLM',
  biases: { qkv: 'attentionBias', out: 'attentionBias', mlp: false },
  norm: {
    offset: true,
    block: { attention: ['input_layernorm', null], mlp: ['pre_feedforward_layernorm', null] },
  },
  activation: { kind: 'geluTanh', key: 'hidden_activation', names: ['gelu_pytorch_tanh'] },
  window: 'layers',
  windowEvery: [null, 2],
  scales: {
    embed: 'rootChannels',
    scores: { key: 'query_pre_attn_scalar', power: -0.5, fallback: 256 },
    scoreCap: { key: 'attn_logit_softcapping', fallback: 50 },
    logitCap: { key: 'final_logit_softcapping', fallback: 30 },
  },
  defaults: {
    max_position_embeddings: 8192,
    num_key_value_heads: 4,
    head_dim: 256,
    pad_token_id: 0,
    sliding_window: 4096,
    tie_word_embeddings: true,
  },
};

/**
 * Language models published as VaultGemma 1B. Source: Google 2025; transformers'
 * VaultGemmaForCausalLM.
 */
export class VaultGemma extends RotaryLM {
  /** Throws DS_ARGUMENT for an unknown option and for invalid sizes. */
  constructor(options: VaultGemmaConfig) {
    super(TRAITS, options);
  }

  /** @internal Describes the family for models.fromPretrained(). */
  static readonly family = rotaryFamily(
    TRAITS,
    (config: VaultGemmaConfig) => new VaultGemma(config),
  );
}
