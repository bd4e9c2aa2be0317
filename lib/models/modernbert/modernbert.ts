// ModernBERT: norms before the branches, rotary positions, gates, and windows in most layers.
import type { EncoderConfig } from '../encoder/config.js';
import { EncoderModel, encoderFamily } from '../encoder/encoder-model.js';
import { BERT_KEYS, type EncoderTraits, type HeadTraits } from '../encoder/traits.js';

/** All heads begin with the same layer and norm. */
const HEAD: HeadTraits = {
  dense: 'head.dense',
  activation: 'gelu',
  norm: 'head.norm',
  out: 'classifier',
};

const TRAITS: EncoderTraits = {
  name: 'ModernBert',
  modelType: 'modernbert',
  classes: 'ModernBert',
  body: 'model',
  keys: {
    ...BERT_KEYS,
    activation: 'hidden_activation',
    eps: ['norm_eps', 1e-5],
    dropout: ['mlp_dropout', 0],
    attentionDropout: ['attention_dropout', 0],
    headDropout: ['classifier_dropout', 0],
  },
  positions: 'rotary',
  types: 0,
  embedding: { words: 'embeddings.tok_embeddings', norm: 'embeddings.norm' },
  layer: {
    list: 'layers',
    attention: 'attn',
    projections: ['Wqkv'],
    out: 'attn.Wo',
    attentionNorm: 'attn_norm',
    first: 'mlp.Wi',
    second: 'mlp.Wo',
    feedNorm: 'mlp_norm',
  },
  lastNorm: 'final_norm',
  gated: true,
  biases: false,
  pools: true,
  heads: {
    sequence: HEAD,
    token: HEAD,
    question: HEAD,
    masked: { ...HEAD, out: 'decoder.bias' },
  },
  only: {
    attention_bias: [false],
    mlp_bias: [false],
    norm_bias: [false],
    classifier_bias: [false],
    decoder_bias: [true],
    classifier_activation: ['gelu'],
    sparse_prediction: [false],
    embedding_dropout: [0],
    mlp_dropout: [0],
    attention_dropout: [0],
  },
  defaults: { max_position_embeddings: 8192 },
};

/**
 * ModernBERT with the head of a task. Source: Warner et al. 2024; transformers' ModernBertModel and
 * its heads.
 */
export class ModernBert extends EncoderModel {
  /** Throws DS_ARGUMENT for an unknown option and for invalid sizes. */
  constructor(options: EncoderConfig) {
    super(TRAITS, options);
  }

  /** @internal Describes the family for models.fromPretrained(). */
  static readonly family = encoderFamily(TRAITS, (config) => new ModernBert(config));
}
