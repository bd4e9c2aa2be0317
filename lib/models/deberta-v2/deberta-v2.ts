// DeBERTa v2 and v3: attention scores depend on the distance between tokens; the input has no
// positions.
import type { EncoderConfig } from '../encoder/config.js';
import { EncoderModel, encoderFamily } from '../encoder/encoder-model.js';
import { BERT_KEYS, BERT_LAYER, type EncoderTraits, PLAIN_HEADS } from '../encoder/traits.js';

const TRAITS: EncoderTraits = {
  name: 'Deberta',
  modelType: 'deberta-v2',
  classes: 'DebertaV2',
  body: 'deberta',
  keys: { ...BERT_KEYS, eps: ['layer_norm_eps', 1e-7], headDropout: ['cls_dropout', null] },
  positions: 'relative',
  types: 0,
  layer: { ...BERT_LAYER, projections: ['query_proj', 'key_proj', 'value_proj'] },
  heads: {
    ...PLAIN_HEADS,
    sequence: {
      dropsInput: true,
      dense: 'pooler.dense',
      activation: 'gelu',
      out: 'classifier',
    },
    masked: {
      dense: 'cls.predictions.transform.dense',
      activation: 'config',
      norm: 'cls.predictions.transform.LayerNorm',
      out: 'cls.predictions.bias',
    },
  },
  only: {
    relative_attention: [true],
    share_att_key: [true],
    position_biased_input: [false],
    norm_rel_ebd: ['layer_norm'],
    pooler_hidden_act: ['gelu'],
    conv_kernel_size: [0],
    type_vocab_size: [0],
    legacy: [true],
  },
  defaults: {
    relative_attention: false,
    share_att_key: false,
    position_biased_input: true,
    norm_rel_ebd: 'none',
  },
};

/**
 * DeBERTa v2 or v3 with the head of a task. Source: He et al. 2020, 2021; transformers'
 * DebertaV2Model and its heads.
 */
export class Deberta extends EncoderModel {
  /** Throws DS_ARGUMENT for an unknown option and for invalid sizes. */
  constructor(options: EncoderConfig) {
    super(TRAITS, options);
  }

  /** @internal Describes the family for models.fromPretrained(). */
  static readonly family = encoderFamily(TRAITS, (config) => new Deberta(config));
}
