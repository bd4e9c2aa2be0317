// RoBERTa: BERT with positions that start after the padding token, and with another head.
import type { EncoderConfig } from '../encoder/config.js';
import { EncoderModel, encoderFamily } from '../encoder/encoder-model.js';
import { type EncoderTraits, PLAIN_HEADS } from '../encoder/traits.js';

/** @internal The traits of RoBERTa, which XLM-R shares. */
export const ROBERTA: EncoderTraits = {
  name: 'Roberta',
  modelType: 'roberta',
  classes: 'Roberta',
  body: 'roberta',
  positions: 'afterPadding',
  types: 2,
  heads: {
    ...PLAIN_HEADS,
    sequence: {
      dropsInput: true,
      dense: 'classifier.dense',
      activation: 'tanh',
      out: 'classifier.out_proj',
    },
    masked: {
      dense: 'lm_head.dense',
      activation: 'gelu',
      norm: 'lm_head.layer_norm',
      out: 'lm_head.bias',
    },
  },
  only: { position_embedding_type: ['absolute'] },
  defaults: { pad_token_id: 1 },
};

/**
 * RoBERTa with the head of a task. Source: Liu et al. 2019; transformers' RobertaModel and its
 * heads.
 */
export class Roberta extends EncoderModel {
  /** Throws DS_ARGUMENT for an unknown option and for invalid sizes. */
  constructor(options: EncoderConfig) {
    super(ROBERTA, options);
  }

  /** @internal Describes the family for models.fromPretrained(). */
  static readonly family = encoderFamily(ROBERTA, (config) => new Roberta(config));
}
