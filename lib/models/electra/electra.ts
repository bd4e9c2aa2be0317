// ELECTRA: BERT with a narrower token table. Folders of discriminators have no head of tokens.
import type { EncoderConfig } from '../encoder/config.js';
import { EncoderModel, encoderFamily } from '../encoder/encoder-model.js';
import { BERT_EMBEDDING, type EncoderTraits, PLAIN_HEADS } from '../encoder/traits.js';

const TRAITS: EncoderTraits = {
  name: 'Electra',
  modelType: 'electra',
  classes: 'Electra',
  body: 'electra',
  positions: 'absolute',
  types: 2,
  embedding: { ...BERT_EMBEDDING, project: 'embeddings_project' },
  heads: {
    ...PLAIN_HEADS,
    sequence: {
      dropsInput: true,
      dense: 'classifier.dense',
      activation: 'gelu',
      out: 'classifier.out_proj',
    },
    masked: {
      dense: 'generator_predictions.dense',
      narrows: true,
      activation: 'gelu',
      norm: 'generator_predictions.LayerNorm',
      out: 'generator_lm_head.bias',
    },
  },
  only: { position_embedding_type: ['absolute'] },
};

/**
 * ELECTRA with the head of a task. Source: Clark et al. 2020; transformers' ElectraModel and its
 * heads.
 */
export class Electra extends EncoderModel {
  /** Throws DS_ARGUMENT for an unknown option and for invalid sizes. */
  constructor(options: EncoderConfig) {
    super(TRAITS, options);
  }

  /** @internal Describes the family for models.fromPretrained(). */
  static readonly family = encoderFamily(TRAITS, (config) => new Electra(config));
}
