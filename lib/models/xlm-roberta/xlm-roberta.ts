// XLM-R: RoBERTa with a vocabulary of many languages.
import type { EncoderConfig } from '../encoder/config.js';
import { EncoderModel, encoderFamily } from '../encoder/encoder-model.js';
import type { EncoderTraits } from '../encoder/traits.js';
import { ROBERTA } from '../roberta/roberta.js';

const TRAITS: EncoderTraits = {
  ...ROBERTA,
  name: 'XlmRoberta',
  modelType: 'xlm-roberta',
  classes: 'XLMRoberta',
};

/**
 * XLM-R with the head of a task. Source: Conneau et al. 2019; transformers' XLMRobertaModel and its
 * heads.
 */
export class XlmRoberta extends EncoderModel {
  /** Throws DS_ARGUMENT for an unknown option and for invalid sizes. */
  constructor(options: EncoderConfig) {
    super(TRAITS, options);
  }

  /** @internal Describes the family for models.fromPretrained(). */
  static readonly family = encoderFamily(TRAITS, (config) => new XlmRoberta(config));
}
