// The declaration of a family of encoders: its differences in config.json, modules and heads.

/** The activations of encoders. */
export const ENCODER_ACTIVATIONS = ['gelu', 'geluTanh', 'relu', 'silu', 'tanh'] as const;

/** An activation of feed-forward blocks and heads. */
export type EncoderActivation = (typeof ENCODER_ACTIVATIONS)[number];

/** Sources of a sequence's vector: its first token, or the mean. */
export const POOLINGS = ['cls', 'mean'] as const;

/** A key of config.json, and its default in transformers. */
type KeyWith<Value> = readonly [key: string, fallback: Value];

/** The family's keys of config.json. */
interface EncoderKeys {
  readonly channels: string;
  readonly layers: string;
  readonly heads: string;
  readonly hidden: string;
  readonly activation: string;
  readonly eps: KeyWith<number>;
  /** Dropout of embeddings and of the output of each block. */
  readonly dropout: KeyWith<number>;
  /** Dropout of attention weights. */
  readonly attentionDropout: KeyWith<number>;
  /** Dropout before the classifier. A default of null: the value of `dropout`. */
  readonly headDropout: KeyWith<number | null>;
}

/** BERT's keys, which most families share. */
export const BERT_KEYS: EncoderKeys = {
  channels: 'hidden_size',
  layers: 'num_hidden_layers',
  heads: 'num_attention_heads',
  hidden: 'intermediate_size',
  activation: 'hidden_act',
  eps: ['layer_norm_eps', 1e-12],
  dropout: ['hidden_dropout_prob', 0.1],
  attentionDropout: ['attention_probs_dropout_prob', 0.1],
  headDropout: ['classifier_dropout', null],
};

/** Positions of tokens. */
type EncoderPositions =
  /** A table; token t has row t. */
  | 'absolute'
  /** A table; padding has the row padTokenId, and tokens have the next rows. */
  | 'afterPadding'
  /** Rotated queries and keys; layers with a window have their own base frequency. */
  | 'rotary'
  /** Attention scores depend on the distance between tokens, in buckets. */
  | 'relative';

/** Names of the embedding's modules in the body. */
export interface EmbeddingNames {
  readonly words: string;
  readonly norm: string;
  /** The table of positions; absent without one. */
  readonly positions?: string;
  /** The table of token types; absent without one. */
  readonly types?: string;
  /** The projection from embedding_size to the channels, if the sizes differ. */
  readonly project?: string;
}

/** BERT's names of the embedding, the default of a family. */
export const BERT_EMBEDDING: EmbeddingNames = {
  words: 'embeddings.word_embeddings',
  norm: 'embeddings.LayerNorm',
  positions: 'embeddings.position_embeddings',
  types: 'embeddings.token_type_embeddings',
};

/** Paths of the modules in a layer. */
export interface LayerNames {
  /** The list of layers in the body. */
  readonly list: string;
  /** The module with the projections of queries, keys and values. */
  readonly attention: string;
  /** Names of its projections: three, or one for all. */
  readonly projections: readonly [q: string, k: string, v: string] | readonly [qkv: string];
  readonly out: string;
  readonly attentionNorm: string;
  readonly first: string;
  readonly second: string;
  readonly feedNorm: string;
}

/** BERT's names of a layer, the default of a family. */
export const BERT_LAYER: LayerNames = {
  list: 'encoder.layer',
  attention: 'attention.self',
  projections: ['query', 'key', 'value'],
  out: 'attention.output.dense',
  attentionNorm: 'attention.output.LayerNorm',
  first: 'intermediate.dense',
  second: 'output.dense',
  feedNorm: 'output.LayerNorm',
};

/** A head: out(norm(activation(dense x))), by paths in the model. An absent part is skipped. */
export interface HeadTraits {
  /** Whether dropout also applies to the input of the head. Default: false. */
  readonly dropsInput?: boolean;
  readonly dense?: string;
  /** The activation after `dense`; "config": the activation of the feed-forward blocks. */
  readonly activation?: EncoderActivation | 'config';
  readonly norm?: string;
  /** Whether `dense` maps to embedding_size. Default: false. */
  readonly narrows?: boolean;
  /** The last layer. For masked-lm, only its bias: the weight is the token table. */
  readonly out: string;
}

/** Heads of a family. */
export interface EncoderHeads {
  readonly sequence: HeadTraits;
  readonly token: HeadTraits;
  readonly question: HeadTraits;
  readonly masked: HeadTraits;
}

/** The token and question heads of most families. */
export const PLAIN_HEADS = {
  token: { out: 'classifier' },
  question: { out: 'qa_outputs' },
} as const;

/** The declaration of a family of encoders. */
export interface EncoderTraits {
  /** Name of the class in this library. */
  readonly name: string;
  /** The value of model_type in config.json. */
  readonly modelType: string;
  /** The beginning of transformers' class names. */
  readonly classes: string;
  /** The field of the body: base_model_prefix of transformers. */
  readonly body: string;
  /** Default: BERT's. */
  readonly keys?: EncoderKeys;
  readonly positions: EncoderPositions;
  /** transformers' default of type_vocab_size; 0: no token types. */
  readonly types: number;
  /** Default: BERT's. */
  readonly embedding?: EmbeddingNames;
  /** Default: BERT's. */
  readonly layer?: LayerNames;
  /**
   * Path of the norm after the last layer. If it is set, norms are before the branches, except for
   * the first attention. Default: norms are after the branches.
   */
  readonly lastNorm?: string;
  /** Whether the feed-forward block is second(activation(a) * b) of [a, b] = first x. */
  readonly gated?: boolean;
  /** Whether layers and norms have biases. Default: true. */
  readonly biases?: boolean;
  /** Whether config.json chooses the vector of a sequence (classifier_pooling). Default: false. */
  readonly pools?: boolean;
  readonly heads: EncoderHeads;
  /** Keys with the only supported values; an absent key has the first. */
  readonly only?: Readonly<Record<string, readonly (number | boolean | string | null)[]>>;
  /** Defaults of transformers for absent keys of config.json. */
  readonly defaults?: Readonly<Record<string, number | boolean | string>>;
}
