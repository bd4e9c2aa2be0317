// BERT: norms after the branches, learned positions, token types, and a pooler.

import type { EncoderConfig } from '../encoder/config.js';
import { EncoderModel, encoderFamily } from '../encoder/encoder-model.js';
import { type EncoderTraits, PLAIN_HEADS } from '../encoder/traits.js';

const TRAITS: EncoderTraits = {
  name: 'Bert',
  modelType: 'bert',
  classes: 'Bert',
  body: 'bert',
  positions: 'absolute',
  types: 2,
  heads: {
    ...PLAIN_HEADS,
    sequence: { dense: 'bert.pooler.dense', activation: 'tanh', out: 'classifier' },
    masked: {
      dense: 'cls.predictions.transform.dense',
      activation: 'config',
      norm: 'cls.predictions.transform.LayerNorm',
      out: 'cls.predictions.bias',
    },
  },
  only: { position_embedding_type: ['absolute'] },
};

/**
 * BERT with the head of a task. Source: Devlin et al. 2018; transformers' BertModel and its heads.
 */
export class Bert extends EncoderModel {
  /** Throws DS_ARGUMENT for an unknown option and for invalid sizes. */
  constructor(options: EncoderConfig) {
    super(TRAITS, options);
  }

  /** @internal Describes the family for models.fromPretrained(). */
  static readonly family = encoderFamily(TRAITS, (config) => new Bert(config));
}
