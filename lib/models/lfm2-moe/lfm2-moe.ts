// LFM2 with experts: a router with sigmoid scores, the first layers dense.
import { LFM2_FILES } from '../lfm2/lfm2.js';
import type { FamilyConfig } from '../rotary/config.js';
import type { MoeConfig } from '../rotary/mixture.js';
import { RotaryLM, rotaryFamily } from '../rotary/rotary-lm.js';
import type { RotaryTraits } from '../rotary/traits.js';

/** Sizes of Lfm2Moe, and the mode of its activations. */
export interface Lfm2MoeConfig extends FamilyConfig<'conv'> {
  /** The experts. */
  moe: MoeConfig;
}

const TRAITS: RotaryTraits = {
  name: 'Lfm2Moe',
  modelType: 'lfm2_moe',
  architecture: 'Lfm2MoeForCausalLM',
  biases: { qkv: false, out: false, mlp: false },
  qkNorm: 'head',
  conv: true,
  norm: {
    eps: ['norm_eps', 1e-5],
    block: { attention: ['operator_norm', null], mlp: ['ffn_norm', null] },
    last: 'embedding_norm',
  },
  window: 'none',
  names: { qNorm: 'q_layernorm', kNorm: 'k_layernorm' },
  out: 'out_proj',
  files: LFM2_FILES,
  moe: {
    experts: ['num_experts', 32],
    perToken: 4,
    hidden: 'moe_intermediate_size',
    shared: false,
    choosesNorm: true,
    choosesLayers: 'first',
    scores: 'sigmoid',
    files: { block: 'feed_forward', gate: 'w1', up: 'w3', down: 'w2', choiceBias: 'expert_bias' },
  },
  keys: { first_k_dense_replace: 'num_dense_layers' },
  others: { tie_embedding: 'tie_word_embeddings' },
  only: { use_expert_bias: [true] },
  defaults: {
    max_position_embeddings: 128_000,
    num_key_value_heads: 8,
    pad_token_id: 0,
    rope_theta: 1e6,
    intermediate_size: 7168,
    moe_intermediate_size: 1792,
    first_k_dense_replace: 2,
    norm_topk_prob: true,
    tie_word_embeddings: true,
  },
};

/**
 * Language models published as LFM2 8B-A1B, 24B-A2B. Source: Liquid AI 2025; transformers'
 * Lfm2MoeForCausalLM.
 */
export class Lfm2Moe extends RotaryLM {
  /** Throws DS_ARGUMENT for an unknown option and for invalid sizes. */
  constructor(given: Lfm2MoeConfig) {
    super(TRAITS, given);
  }

  /** @internal Describes the family for models.fromPretrained(). */
  static readonly family = rotaryFamily(TRAITS, (config: Lfm2MoeConfig) => new Lfm2Moe(config));
}
