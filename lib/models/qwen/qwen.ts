// Qwen, the first version: Qwen2 under other names, with queries, keys and values in one matrix.
import type { JsonObject } from '../../../types/json.js';
import type { PretrainedDescription } from '../../nn/pretrained-description.js';
import type { ModelConfig } from '../model-config.js';
import type { Family } from '../model-folder.js';
import type { FamilyConfig, RotaryOptions } from '../rotary/config.js';
import { parseRotaryConfig } from '../rotary/pretrained.js';
import { RotaryLM, rotaryFamily } from '../rotary/rotary-lm.js';
import { COMMON_ROPE, type RotaryTraits, SILU } from '../rotary/traits.js';

/** Options of Qwen: sizes, and the mode of its activations. */
export type QwenConfig = FamilyConfig;

const FEED = Object.entries({ gate_proj: 'w2', up_proj: 'w1', down_proj: 'c_proj' });

const TRAITS: RotaryTraits = {
  name: 'Qwen',
  modelType: 'qwen',
  architecture: 'QWenLMHeadModel',
  biases: { qkv: true, out: false, mlp: false },
  norm: {
    eps: ['layer_norm_epsilon', 1e-6],
    last: 'ln_f',
    block: { attention: ['ln_1', null], mlp: ['ln_2', null] },
  },
  activation: SILU,
  names: { model: 'transformer', embed: 'wte', layers: 'h', attention: 'attn', qkv: 'c_attn' },
  packed: true,
  feed: 'gated',
  out: 'c_proj',
  rope: { ...COMMON_ROPE, keys: { theta: 'rotary_emb_base', partial: 'rotary_pct' } },
  window: 'none',
  files: Object.fromEntries(
    FEED.map(([own, theirs]) => [
      `transformer.h.*.mlp.${own}.weight`,
      `transformer.h.*.mlp.${theirs}.weight`,
    ]),
  ),
  // Beyond seq_length, these models change the angles and scale queries.
  keys: { max_position_embeddings: 'seq_length', head_dim: 'kv_channels' },
  only: { no_bias: [true], scale_attn_weights: [true], visual: [null] },
  defaults: {
    vocab_size: 151_936,
    hidden_size: 4096,
    num_attention_heads: 32,
    num_hidden_layers: 32,
    intermediate_size: 22_016,
    head_dim: 128,
    max_position_embeddings: 2048,
  },
};

/**
 * Language models published as Qwen 1.8B, 7B, 14B, 72B. Source: Qwen team 2023, and the code beside
 * its weights.
 */
export class Qwen extends RotaryLM {
  /** Throws DS_ARGUMENT for an unknown option and for invalid sizes. */
  constructor(options: QwenConfig) {
    super(TRAITS, options);
  }

  /** @internal Describes the family for models.fromPretrained(). */
  static readonly family: Family<Qwen, RotaryOptions> = {
    ...rotaryFamily(TRAITS, (config: QwenConfig) => new Qwen(config)),
    build: ({ config, tensors }, options) =>
      new Qwen({
        ...parseRotaryConfig(TRAITS, { config: halveWidth(config), tensors }),
        ...options,
      }),
  };

  protected override described(): PretrainedDescription {
    const description = super.described();
    const config: JsonObject = { ...description.config, intermediate_size: 2 * this.config.hidden };
    return { ...description, config: { ...config, no_bias: true } };
  }
}

/** In these files, intermediate_size counts the gate and the other half of the block. */
function halveWidth(config: ModelConfig): ModelConfig {
  const both = config.size('intermediate_size', Number(TRAITS.defaults.intermediate_size));
  if (both % 2 !== 0) throw config.refusalError('intermediate_size', 'an even number', both);
  return config.withContent({ intermediate_size: both / 2 });
}
