// DistilBERT: BERT without token types and pooler, under other names.
import type { EncoderConfig } from '../encoder/config.js';
import { EncoderModel, encoderFamily } from '../encoder/encoder-model.js';
import { type EncoderTraits, PLAIN_HEADS } from '../encoder/traits.js';

const TRAITS: EncoderTraits = {
  name: 'DistilBert',
  modelType: 'distilbert',
  classes: 'DistilBert',
  body: 'distilbert',
  keys: {
    channels: 'dim',
    layers: 'n_layers',
    heads: 'n_heads',
    hidden: 'hidden_dim',
    activation: 'activation',
    eps: ['layer_norm_eps', 1e-12],
    dropout: ['dropout', 0.1],
    attentionDropout: ['attention_dropout', 0.1],
    headDropout: ['seq_classif_dropout', 0.2],
  },
  positions: 'absolute',
  types: 0,
  layer: {
    list: 'transformer.layer',
    attention: 'attention',
    projections: ['q_lin', 'k_lin', 'v_lin'],
    out: 'attention.out_lin',
    attentionNorm: 'sa_layer_norm',
    first: 'ffn.lin1',
    second: 'ffn.lin2',
    feedNorm: 'output_layer_norm',
  },
  heads: {
    ...PLAIN_HEADS,
    sequence: { dense: 'pre_classifier', activation: 'relu', out: 'classifier' },
    masked: {
      dense: 'vocab_transform',
      activation: 'config',
      norm: 'vocab_layer_norm',
      out: 'vocab_projector.bias',
    },
  },
};

/**
 * DistilBERT with the head of a task. Source: Sanh et al. 2019; transformers' DistilBertModel and
 * its heads.
 */
export class DistilBert extends EncoderModel {
  /** Throws DS_ARGUMENT for an unknown option and for invalid sizes. */
  constructor(options: EncoderConfig) {
    super(TRAITS, options);
  }

  /** @internal Describes the family for models.fromPretrained(). */
  static readonly family = encoderFamily(TRAITS, (config) => new DistilBert(config));
}
