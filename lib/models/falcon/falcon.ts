// Falcon: parallel branches, and the queries of a key head, the key and the value in one matrix.
import type { PretrainedDescription } from '../../nn/pretrained-description.js';
import { isObject } from '../../runtime/is-object.js';
import { requireOneOf } from '../../runtime/require-type.js';
import type { Family, ModelFolder } from '../model-folder.js';
import type { FamilyConfig, RotaryOptions } from '../rotary/config.js';
import { parseRotaryConfig } from '../rotary/pretrained.js';
import { RotaryLM, rotaryFamily } from '../rotary/rotary-lm.js';
import { type BlockNorms, ONE_NORM, PRE_NORMS, type RotaryTraits } from '../rotary/traits.js';

/** Options of Falcon: sizes, and the mode of its activations. */
export interface FalconConfig extends FamilyConfig<'attentionBias' | 'parallel'> {
  /** Norms of a parallel block: one for both branches, or one for each. Default: 1. */
  norms?: 1 | 2;
}

const TWO_NORMS: BlockNorms = { attention: ['ln_attn', null], mlp: ['ln_mlp', null] };

/** The declaration of models with `block`; `parallel` is the block without this setting. */
const createTraits = (block: BlockNorms, parallel: BlockNorms): RotaryTraits => ({
  name: 'Falcon',
  modelType: 'falcon',
  architecture: 'FalconForCausalLM',
  biases: { qkv: 'attentionBias', out: 'attentionBias', mlp: 'attentionBias', key: 'bias' },
  norm: { kind: 'layer', eps: ['layer_norm_epsilon', 1e-5], block, last: 'ln_f' },
  parallel: { key: ['parallel_attn', true], block: parallel },
  activation: { kind: 'gelu', key: 'activation', names: ['gelu'] },
  names: {
    model: 'transformer',
    embed: 'word_embeddings',
    layers: 'h',
    attention: 'self_attention',
  },
  perHead: 'query_key_value',
  perGroup: true,
  out: 'dense',
  feed: { first: 'dense_h_to_4h', second: 'dense_4h_to_h' },
  window: 'none',
  keys: { num_key_value_heads: 'num_kv_heads', intermediate_size: 'ffn_hidden_size' },
  only: { alibi: [false], hidden_dropout: [0] },
  defaults: { max_position_embeddings: 2048, tie_word_embeddings: true },
});
const [ONE, TWO] = [createTraits(PRE_NORMS, ONE_NORM), createTraits(TWO_NORMS, TWO_NORMS)];

/**
 * Language models published as Falcon 7B, 40B, 180B, 11B. Source: Almazrouei et al. 2023;
 * transformers' FalconForCausalLM.
 */
export class Falcon extends RotaryLM {
  private readonly norms: 1 | 2;

  /** Throws DS_ARGUMENT for an unknown option and for invalid sizes. */
  constructor(config: FalconConfig) {
    const isGiven = isObject<FalconConfig>(config);
    const { norms = 1, ...sizes } = isGiven ? config : ({} as FalconConfig);
    super(norms === 2 ? TWO : ONE, isGiven ? sizes : config);
    this.norms = requireOneOf('Falcon norms', norms, [1, 2]);
  }

  /** @internal Describes the family for models.fromPretrained(). */
  static readonly family: Family<Falcon, RotaryOptions> = {
    ...rotaryFamily(ONE, (config: FalconConfig) => new Falcon(config)),
    build: (folder, options) => new Falcon({ ...parse(folder), ...options }),
  };

  protected override described(): PretrainedDescription {
    const description = super.described();
    const { parallel = true, kvHeads } = this.config;
    const keys = {
      alibi: false,
      new_decoder_architecture: parallel,
      multi_query: kvHeads === 1,
      ...(parallel && { num_ln_in_parallel_attn: this.norms }),
    };
    return { ...description, config: { ...description.config, ...keys } };
  }
}

/** Older files have one key head or all; newer ones have num_kv_heads and up to two norms. */
function parse({ config, tensors }: ModelFolder): FalconConfig {
  const isNew = config.flag('new_decoder_architecture', false);
  const heads = config.size('num_attention_heads');
  const older = config.flag('multi_query', true) ? 1 : heads;
  const num_kv_heads = isNew ? config.size('num_kv_heads', heads) : older;
  const norms = config.size('num_ln_in_parallel_attn', isNew ? 2 : 1, isNew ? 2 : 1) as 1 | 2;
  if (isNew) config.requireOneOf('parallel_attn', [true]);
  const folder = { tensors, config: config.withContent({ num_kv_heads }) };
  return { ...parseRotaryConfig(norms === 2 ? TWO : ONE, folder), norms };
}
