// Reads and checks the sizes of an encoder.

import { argumentError, valueError } from '../../runtime/input-errors.js';
import { namesOf, readOptions } from '../../runtime/options.js';
import { requireFinite, requireInteger } from '../../runtime/require-number.js';
import { requireOneOf } from '../../runtime/require-type.js';
import {
  type HeadTask,
  type LabelOptions,
  type Labels,
  readLabels,
  requireTask,
} from '../tasks/task.js';
import {
  BERT_EMBEDDING,
  BERT_LAYER,
  type EmbeddingNames,
  ENCODER_ACTIVATIONS,
  type EncoderActivation,
  type EncoderTraits,
  type LayerNames,
  POOLINGS,
} from './traits.js';

/** Sizes, task and dropout of an encoder, and activation checkpointing. */
export interface EncoderConfig extends LabelOptions {
  /** Number of tokens in the vocabulary. */
  vocabSize: number;
  /** Maximum length of a sequence, with special tokens. */
  maxSeq: number;
  /** Number of layers. */
  layers: number;
  /** Number of attention heads. */
  heads: number;
  /** Width of the hidden states (hidden_size). */
  channels: number;
  /** Width inside the feed-forward block (intermediate_size). */
  hidden: number;
  /** The task of the head. Default: "embedding", without a head. */
  task?: HeadTask;
  /** Number of token types (type_vocab_size), in families with token types. */
  types?: number;
  /** Width of the token table, in families where it may differ. Default: `channels`. */
  embeddingSize?: number;
  /** Activation of the feed-forward blocks. Default: "gelu". */
  activation?: EncoderActivation;
  /** Epsilon of the norms. Default: the family's. */
  eps?: number;
  /** Dropout of embeddings and of the output of each block in training. Default: 0.1. */
  dropout?: number;
  /** Dropout of attention weights in training. Default: 0.1. */
  attentionDropout?: number;
  /** Dropout before the classifier. Default: `dropout`. */
  headDropout?: number;
  /**
   * Id of the padding token. Its row starts with zeros and gets no gradient as an input. Default:
   * 0.
   */
  padTokenId?: number;
  /** Standard deviation of the initial weights. Default: 0.02. */
  initializerRange?: number;
  /**
   * For each layer, the number of tokens on either side that a query sees; null: all tokens. Only
   * with rotary positions.
   */
  windows?: readonly (number | null)[];
  /** Base of the rotary frequencies. Default: 160000. */
  ropeTheta?: number;
  /** Base of the rotary frequencies in layers with a window. Default: 10000. */
  windowRopeTheta?: number;
  /** Number of buckets of relative positions. Default: 256. */
  buckets?: number;
  /** Maximum distance of relative positions. Default: `maxSeq`. */
  maxDistance?: number;
  /**
   * Source of a sequence's vector: the first token, or the mean. Only ModernBERT. Default: "cls".
   */
  pooling?: (typeof POOLINGS)[number];
  /** Whether the forward keeps one tensor per segment and the backward recomputes the rest. */
  activationCheckpointing?: boolean;
  /**
   * Segments that activationCheckpointing recomputes. Default: number_checkpoints, else `layers`.
   */
  numberCheckpoints?: number;
}

/** Options of fromPretrained() for an encoder. The folder determines the other sizes. */
export type EncoderOptions = LabelOptions &
  Partial<
    Pick<
      EncoderConfig,
      | 'dropout'
      | 'attentionDropout'
      | 'headDropout'
      | 'activationCheckpointing'
      | 'numberCheckpoints'
    >
  >;

/** The configuration of an encoder, with defaults. */
export interface EncoderSizes
  extends Required<Omit<EncoderConfig, 'labels' | 'problemType' | 'numberCheckpoints'>>,
    Pick<EncoderConfig, 'numberCheckpoints'> {
  /** Names of the labels, and how the loss is computed. */
  readonly labels: Labels;
}

/** Sizes, and the names of the family's modules. */
export interface EncoderBodySizes extends EncoderSizes {
  readonly traits: EncoderTraits;
  readonly names: { readonly embedding: EmbeddingNames; readonly layer: LayerNames };
  readonly biases: boolean;
}

const COUNTS = ['vocabSize', 'maxSeq', 'layers', 'heads', 'channels', 'hidden'] as const;
const RATES = ['dropout', 'attentionDropout', 'headDropout'] as const;

/** Returns `options` with defaults. Throws DS_ARGUMENT for invalid sizes and unknown options. */
export function readEncoderConfig(traits: EncoderTraits, options: EncoderConfig): EncoderSizes {
  const { name, types } = traits;
  const config = readOptions(name, options, namesOf.EncoderConfig);
  for (const size of COUNTS) requireInteger(`${name} ${size}`, config[size], 1);
  const { heads, channels, maxSeq, layers, dropout = 0.1, task = 'embedding' } = config;
  const width = channels / heads;
  if (!Number.isInteger(width) || (traits.positions === 'rotary' && width % 2 !== 0)) {
    const expected = traits.positions === 'rotary' ? 'heads of an even width' : 'a divisor';
    throw valueError(`${name} heads`, `${expected} of ${channels} channels`, heads);
  }
  const checkedTask = requireTask(`${name} task`, task);
  if (checkedTask === 'auto' || checkedTask === 'causal-lm') {
    throw argumentError(`${name} task`, 'a task of an encoder', `"${checkedTask}"`);
  }
  const windows = config.windows ?? Array.from({ length: layers }, () => null);
  if (!Array.isArray(windows) || windows.length !== layers) {
    throw valueError(`${name} windows`, `a window or null for each of ${layers} layers`, windows);
  }
  for (const window of windows) if (window !== null) requireInteger(`${name} windows`, window, 0);
  const complete = {
    ...config,
    task: checkedTask,
    windows,
    dropout,
    labels: readLabels(name, config),
    types: requireInteger(`${name} types`, config.types ?? types, 0),
    embeddingSize: requireInteger(`${name} embeddingSize`, config.embeddingSize ?? channels, 1),
    activation: config.activation ?? 'gelu',
    attentionDropout: config.attentionDropout ?? 0.1,
    headDropout: config.headDropout ?? dropout,
    eps: requireFinite(`${name} eps`, config.eps ?? (traits.keys?.eps ?? [0, 1e-12])[1], 0),
    padTokenId: requireInteger(`${name} padTokenId`, config.padTokenId ?? 0, 0),
    initializerRange: requireFinite(`${name} initializerRange`, config.initializerRange ?? 0.02, 0),
    ropeTheta: requireFinite(`${name} ropeTheta`, config.ropeTheta ?? 160_000, 1),
    windowRopeTheta: requireFinite(`${name} windowRopeTheta`, config.windowRopeTheta ?? 10_000, 1),
    buckets: requireInteger(`${name} buckets`, config.buckets ?? 256, 2),
    maxDistance: requireInteger(`${name} maxDistance`, config.maxDistance ?? maxSeq, 1),
    pooling: config.pooling ?? 'cls',
    activationCheckpointing: config.activationCheckpointing ?? false,
  };
  for (const rate of RATES) requireFinite(`${name} ${rate}`, complete[rate], 0, 1);
  requireOneOf(`${name} activation`, complete.activation, ENCODER_ACTIVATIONS);
  requireOneOf(`${name} pooling`, complete.pooling, POOLINGS);
  const { problemType: _, ...sizes } = complete;
  return sizes;
}

/** Returns the sizes with the names of the family's modules. */
export function toBody(traits: EncoderTraits, sizes: EncoderSizes): EncoderBodySizes {
  const { embedding = BERT_EMBEDDING, layer = BERT_LAYER, biases = true } = traits;
  return { ...sizes, traits, names: { embedding, layer }, biases };
}
