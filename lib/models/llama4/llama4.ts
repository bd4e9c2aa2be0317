// Llama 4: chunked attention, layers without positions, and experts with scaled inputs.
import type { FamilyConfig } from '../rotary/config.js';
import type { MoeConfig } from '../rotary/mixture.js';
import { RotaryLM, rotaryFamily } from '../rotary/rotary-lm.js';
import { COMMON_ROPE, type RotaryTraits } from '../rotary/traits.js';

/** Sizes of Llama4, and the mode of its activations. */
export interface Llama4Config
  extends FamilyConfig<
    'attentionBias' | 'ropeLayers' | 'attentionChunk' | 'queryScale' | 'qkNorm'
  > {
  /** The experts, and the width of the shared one. */
  moe: MoeConfig & { sharedHidden: number };
}

/** Names of the feed-forward block in files, by this library's names. */
const FEED_NAMES = {
  'gate.weight': 'router.weight',
  'experts.gate_up_proj': 'experts.gate_up_proj',
  'experts.down_proj': 'experts.down_proj',
  ...Object.fromEntries(
    ['gate_proj', 'up_proj', 'down_proj'].flatMap((name) => [
      [`${name}.weight`, `${name}.weight`],
      [`shared_experts.${name}.weight`, `shared_expert.${name}.weight`],
    ]),
  ),
};

const TRAITS: RotaryTraits = {
  name: 'Llama4',
  modelType: 'llama4_text',
  textOf: ['llama4'],
  architecture: 'Llama4ForCausalLM',
  biases: { qkv: 'attentionBias', out: 'attentionBias', mlp: false },
  qkNorm: 'bareHead',
  qkNormLast: true,
  qkNormKey: ['use_qk_norm', true],
  norm: { eps: ['rms_norm_eps', 1e-5] },
  window: 'none',
  chunked: true,
  rope: { ...COMMON_ROPE, interleaved: true, off: 'listed' },
  moe: {
    experts: ['num_local_experts', 16],
    perToken: 1,
    hidden: 'moe_intermediate_size',
    shared: 'ungated',
    choosesNorm: 'never',
    choosesLayers: 'listed',
    scores: 'sigmoid',
    choiceBias: false,
    scalesInputs: true,
    inputsFirst: true,
    files: null,
  },
  files: Object.fromEntries(
    Object.entries(FEED_NAMES).map(([own, theirs]) => [
      `model.layers.*.mlp.${own}`,
      `model.layers.*.feed_forward.${theirs}`,
    ]),
  ),
  keys: {
    intermediate_size: 'intermediate_size_mlp',
    moe_intermediate_size: 'intermediate_size',
  },
  defaults: {
    vocab_size: 202_048,
    num_hidden_layers: 48,
    hidden_size: 5120,
    num_attention_heads: 40,
    max_position_embeddings: 131_072,
    num_key_value_heads: 8,
    head_dim: 128,
    intermediate_size: 16_384,
    moe_intermediate_size: 8192,
    n_shared_experts: 1,
    attention_chunk_size: 8192,
    rope_theta: 500_000,
  },
};

/**
 * Language models published as Llama 4 Scout and Maverick. Source: Meta 2025; transformers'
 * Llama4ForCausalLM.
 */
export class Llama4 extends RotaryLM {
  /** Throws DS_ARGUMENT for an unknown option and for invalid sizes. */
  constructor(options: Llama4Config) {
    super(TRAITS, options);
  }

  /** @internal Describes the family for models.fromPretrained(). */
  static readonly family = rotaryFamily(TRAITS, (config: Llama4Config) => new Llama4(config));
}
