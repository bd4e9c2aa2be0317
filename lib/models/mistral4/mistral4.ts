// Mistral 4: latent attention with queries scaled by position, and a softmax router.
import type { FamilyConfig } from '../rotary/config.js';
import type { MoeConfig } from '../rotary/mixture.js';
import { RotaryLM, rotaryFamily } from '../rotary/rotary-lm.js';
import { COMMON_ROPE, type RotaryTraits } from '../rotary/traits.js';

/** Options of Mistral4: sizes, and the mode of its activations. */
export interface Mistral4Config extends FamilyConfig<'attentionBias' | 'latent'> {
  /** The experts, including the shared ones. */
  moe: MoeConfig & { sharedHidden: number };
}

const TRAITS: RotaryTraits = {
  name: 'Mistral4',
  modelType: 'mistral4',
  textOf: ['mistral3'],
  architecture: 'Mistral4ForCausalLM',
  biases: { qkv: 'attentionBias', out: 'attentionBias', mlp: false },
  latent: true,
  window: 'none',
  rope: {
    ...COMMON_ROPE,
    interleaved: true,
    scalesQueries: true,
    // A copy of the length outside of the section.
    ofPictures: ['max_position_embeddings'],
    sectionsOnly: true,
  },
  moe: {
    experts: ['n_routed_experts', 128],
    perToken: 4,
    hidden: 'moe_intermediate_size',
    shared: 'ungated',
    choosesNorm: true,
    choosesLayers: 'first',
    scores: 'softmax',
    files: null,
  },
  only: { rope_interleave: [true], n_group: [1], topk_group: [1] },
  defaults: {
    max_position_embeddings: 1_048_576,
    num_attention_heads: 32,
    norm_topk_prob: true,
    q_lora_rank: 1024,
    kv_lora_rank: 256,
    qk_nope_head_dim: 64,
    qk_rope_head_dim: 64,
    v_head_dim: 128,
    n_shared_experts: 1,
    moe_intermediate_size: 2048,
    intermediate_size: 12_288,
    pad_token_id: 11,
    rope_parameters: {
      rope_type: 'yarn',
      rope_theta: 10_000,
      factor: 128,
      original_max_position_embeddings: 8192,
      beta_fast: 32,
      beta_slow: 1,
      mscale_all_dim: 1,
      mscale: 1,
      llama_4_scaling_beta: 0.1,
    },
  },
};

/** Language models published as Mistral Small 4. Source: transformers' Mistral4ForCausalLM. */
export class Mistral4 extends RotaryLM {
  /** Throws DS_ARGUMENT for an unknown option and for invalid sizes. */
  constructor(options: Mistral4Config) {
    super(TRAITS, options);
  }

  /** @internal Describes the family for models.fromPretrained(). */
  static readonly family = rotaryFamily(TRAITS, (config: Mistral4Config) => new Mistral4(config));
}
