// MPT: scores with linear biases, LayerNorm and projections without biases, and GELU without a
// gate.
import type { JsonObject } from '../../../types/json.js';
import type { PretrainedDescription } from '../../nn/pretrained-description.js';
import type { ModelConfig } from '../model-config.js';
import type { Family } from '../model-folder.js';
import type { FamilyConfig, RotaryOptions } from '../rotary/config.js';
import { parseRotaryConfig } from '../rotary/pretrained.js';
import { RotaryLM, rotaryFamily } from '../rotary/rotary-lm.js';
import type { RotaryTraits } from '../rotary/traits.js';

/** Options of Mpt: sizes, and the mode of its activations. */
export type MptConfig = FamilyConfig<'scales'>;

const FEED = ['up_proj', 'down_proj'].map((name) => [
  `transformer.blocks.*.mlp.${name}.weight`,
  `transformer.blocks.*.ffn.${name}.weight`,
]);

const TRAITS: RotaryTraits = {
  name: 'Mpt',
  modelType: 'mpt',
  architecture: 'MptForCausalLM',
  biases: { qkv: false, out: false, mlp: false },
  norm: {
    kind: 'layerNoBias',
    eps: ['layer_norm_epsilon', 1e-5],
    last: 'norm_f',
    block: { attention: ['norm_1', null], mlp: ['norm_2', null] },
  },
  activation: { kind: 'gelu', names: ['gelu'] },
  names: { model: 'transformer', embed: 'wte', layers: 'blocks', attention: 'attn', qkv: 'Wqkv' },
  positions: 'alibi',
  packed: true,
  out: 'out_proj',
  feed: { first: 'up_proj', second: 'down_proj' },
  scales: { clip: { key: 'clip_qkv', fallback: null } },
  window: 'none',
  files: Object.fromEntries(FEED),
  keys: {
    hidden_size: 'd_model',
    num_attention_heads: 'n_heads',
    num_hidden_layers: 'n_layers',
    max_position_embeddings: 'max_seq_len',
  },
  others: {
    d_model: 'hidden_size',
    n_heads: 'num_attention_heads',
    n_layers: 'num_hidden_layers',
  },
  only: { no_bias: [true], expansion_ratio: [4], logit_scale: [null] },
  defaults: {
    vocab_size: 50_368,
    hidden_size: 2048,
    num_attention_heads: 16,
    num_hidden_layers: 24,
    max_position_embeddings: 2048,
    tie_word_embeddings: true,
  },
};

/** Settings of the section attn_config, with the only supported values. */
const ATTENTION = {
  attn_type: ['multihead_attention'],
  prefix_lm: [false],
  qk_ln: [false],
  softmax_scale: [null],
  alibi_bias_max: [8],
} as const;

/**
 * Language models published as MPT 7B, 30B. Source: MosaicML 2023; Press et al. 2022 (ALiBi);
 * transformers' MptForCausalLM.
 */
export class Mpt extends RotaryLM {
  /** Throws DS_ARGUMENT for an unknown option and for invalid sizes. */
  constructor(options: MptConfig) {
    super(TRAITS, options);
  }

  /** @internal Describes the family for models.fromPretrained(). */
  static readonly family: Family<Mpt, RotaryOptions> = {
    ...rotaryFamily(TRAITS, (config: MptConfig) => new Mpt(config)),
    build: ({ config, tensors }, options) =>
      new Mpt({
        ...parseRotaryConfig(TRAITS, { config: withAttention(config), tensors }),
        ...options,
      }),
  };

  protected override described(): PretrainedDescription {
    const description = super.described();
    const { clip_qkv, ...config } = description.config as JsonObject & { clip_qkv: number | null };
    return { ...description, config: { ...config, attn_config: { alibi: true, clip_qkv } } };
  }
}

/** Checks the section attn_config. Returns the configuration with the section's clip_qkv. */
function withAttention(config: ModelConfig): ModelConfig {
  const attention = config.section('attn_config');
  for (const [key, values] of Object.entries(ATTENTION)) attention.requireOneOf(key, values);
  if (!attention.flag('alibi', true)) {
    throw attention.refusalError('alibi', 'true: a learned table of positions is missing', false);
  }
  return config.withContent({ clip_qkv: attention.get('clip_qkv') });
}
