// Phi-3.5-MoE: Mixtral's blocks with LayerNorm, biases, and a router that mixes near experts.
import type { JsonObject } from '../../../types/json.js';
import type { PretrainedDescription } from '../../nn/pretrained-description.js';
import { isObject } from '../../runtime/is-object.js';
import { requireType } from '../../runtime/require-type.js';
import type { ModelConfig } from '../model-config.js';
import type { Family } from '../model-folder.js';
import type { FamilyConfig, RotaryOptions } from '../rotary/config.js';
import type { MoeConfig } from '../rotary/mixture.js';
import { parseRotaryConfig } from '../rotary/pretrained.js';
import { RotaryLM, rotaryFamily } from '../rotary/rotary-lm.js';
import { COMMON_ROPE, type RotaryTraits } from '../rotary/traits.js';

/** Options of Phimoe: sizes, and the mode of its activations. */
export interface PhimoeConfig extends FamilyConfig<'attentionBias' | 'window'> {
  /** The experts; `perToken` is 2. */
  moe: MoeConfig;
  /** Whether the head has a bias (lm_head_bias). Default: true, as in the published models. */
  headBias?: boolean;
}

const createTraits = (head: boolean): RotaryTraits => ({
  name: 'Phimoe',
  modelType: 'phimoe',
  architecture: 'PhimoeForCausalLM',
  biases: { qkv: 'attentionBias', out: 'attentionBias', mlp: false, head },
  norm: { kind: 'layer', eps: ['rms_norm_eps', 1e-5] },
  window: 'uniform',
  rope: COMMON_ROPE,
  moe: {
    experts: ['num_local_experts', 16],
    perToken: 2,
    hidden: 'intermediate_size',
    shared: false,
    choosesNorm: 'never',
    choosesLayers: false,
    sparseMixer: 0.01,
    files: { block: 'block_sparse_moe', gate: 'w1', up: 'w3', down: 'w2' },
  },
  only: { num_experts_per_tok: [2], output_router_logits: [false] },
  written: { lm_head_bias: head, router_jitter_noise: 0.01 },
  defaults: {
    max_position_embeddings: 131_072,
    num_key_value_heads: 8,
    intermediate_size: 6400,
  },
});

/** Keys of a scaling in both versions of transformers. */
const SECTIONS = ['rope_scaling', 'rope_parameters'] as const;

/**
 * Language models published as Phi-3.5-MoE, Phi-mini-MoE, Phi-tiny-MoE. Source: Abdin et al. 2024;
 * transformers' PhimoeForCausalLM.
 */
export class Phimoe extends RotaryLM {
  /** Throws DS_ARGUMENT for an unknown option and for invalid sizes. */
  constructor(options: PhimoeConfig) {
    const isGiven = isObject<PhimoeConfig>(options);
    const { headBias = true, ...sizes } = isGiven ? options : ({} as PhimoeConfig);
    requireType('Phimoe headBias', headBias, 'boolean');
    super(createTraits(headBias), isGiven ? sizes : options);
  }

  /** @internal Describes the family for models.fromPretrained(). */
  static readonly family: Family<Phimoe, RotaryOptions> = {
    ...rotaryFamily(createTraits(true), (config: PhimoeConfig) => new Phimoe(config)),
    build: ({ config, tensors }, options) => {
      const headBias = config.flag('lm_head_bias', false);
      const folder = { config: withFactor(config), tensors };
      const sizes = parseRotaryConfig(createTraits(headBias), folder) as PhimoeConfig;
      return new Phimoe({ ...sizes, headBias, ...options });
    },
  };

  protected override described(): PretrainedDescription {
    const description = super.described();
    const config: JsonObject = { ...description.config };
    for (const key of SECTIONS) {
      const section = config[key];
      if (!isObject<JsonObject>(section) || section.attention_factor === undefined) continue;
      const { attention_factor: factor, ...rest } = section;
      config[key] = { ...rest, short_mscale: factor, long_mscale: factor };
    }
    return { ...description, config };
  }
}

/** Returns the keys with one factor of cosines and sines for all lengths of LongRoPE. */
function withFactor(config: ModelConfig): ModelConfig {
  let out = config;
  for (const key of SECTIONS) {
    if (config.get(key) === null) continue;
    const section = config.section(key);
    if (!section.has('short_mscale') && !section.has('long_mscale')) continue;
    const factor = section.positive('short_mscale');
    section.requireOneOf('long_mscale', [factor]);
    const { short_mscale: _, long_mscale: __, ...rest } = config.get(key) as JsonObject;
    out = out.withContent({ [key]: { ...rest, attention_factor: factor } });
  }
  return out;
}
