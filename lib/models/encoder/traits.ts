// The declaration of a family of encoders: where its config.json, modules and heads differ.

/** The function of feed-forward blocks and heads. */
export type EncoderActivation = 'gelu' | 'geluTanh' | 'relu' | 'silu' | 'tanh';

/** A key of config.json, and transformers' default for it. */
export type KeyWith<Value> = readonly [key: string, fallback: Value];

/** Keys of config.json. */
export interface EncoderKeys {
  readonly channels: string;
  readonly layers: string;
  readonly heads: string;
  readonly hidden: string;
  readonly activation: string;
  readonly eps: KeyWith<number>;
  /** Dropout of embeddings and branches. */
  readonly dropout: KeyWith<number>;
  /** Dropout of attention weights. */
  readonly attentionDropout: KeyWith<number>;
  /** Dropout before the classifier. A fallback of null: that of `dropout`. */
  readonly headDropout: KeyWith<number | null>;
}

/** BERT's keys, which most families share. */
export const BERT_KEYS: EncoderKeys = {
  ...{ channels: 'hidden_size', layers: 'num_hidden_layers', heads: 'num_attention_heads' },
  ...{ hidden: 'intermediate_size', activation: 'hidden_act', eps: ['layer_norm_eps', 1e-12] },
  dropout: ['hidden_dropout_prob', 0.1],
  attentionDropout: ['attention_probs_dropout_prob', 0.1],
  headDropout: ['classifier_dropout', null],
};

/** Positions of tokens. */
export type EncoderPositions =
  /** A table of rows 0, 1, .. */
  | 'absolute'
  /** A table whose rows follow the padding token's: padding has its row, tokens the next ones. */
  | 'afterPadding'
  /** Rotated queries and keys; layers with a window have their own base frequency. */
  | 'rotary'
  /** Scores by the distance of tokens, in buckets. */
  | 'relative';

/** The embedding, below the body. */
export interface EmbeddingNames {
  readonly words: string;
  readonly norm: string;
  /** Tables of positions and of token types. Default: "embeddings." and transformers' names. */
  readonly positions?: string;
  readonly types?: string;
  /** From embedding_size to the channels, if the sizes differ. */
  readonly project?: string;
}

export const BERT_EMBEDDING: EmbeddingNames = {
  words: 'embeddings.word_embeddings',
  norm: 'embeddings.LayerNorm',
  positions: 'embeddings.position_embeddings',
  types: 'embeddings.token_type_embeddings',
};

/** Modules of a layer, by their paths in it. */
export interface LayerNames {
  /** The list of layers in the body. */
  readonly list: string;
  /** The module with the projections of queries, keys and values. */
  readonly attention: string;
  /** Names in it: three projections, or one. */
  readonly projections: readonly [q: string, k: string, v: string] | readonly [qkv: string];
  readonly out: string;
  readonly attentionNorm: string;
  readonly first: string;
  readonly second: string;
  readonly feedNorm: string;
}

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

/** A head: out(norm(activation(dense x))), by paths in the model. Absent parts are left out. */
export interface HeadTraits {
  /** Dropout of its input as well as before `out`. Default false. */
  readonly dropsInput?: boolean;
  readonly dense?: string;
  /** After `dense`; "config": that of the feed-forward blocks. */
  readonly activation?: EncoderActivation | 'config';
  readonly norm?: string;
  /** Whether `dense` maps to embedding_size. Default false. */
  readonly narrows?: boolean;
  /** The last layer; of a masked language model the bias, whose weight is the token table. */
  readonly out: string;
}

/** Heads of a family. */
export interface EncoderHeads {
  readonly sequence: HeadTraits;
  readonly token: HeadTraits;
  readonly question: HeadTraits;
  readonly masked: HeadTraits;
}

/** Heads of tokens and answers in most families. */
export const PLAIN_HEADS = {
  token: { out: 'classifier' },
  question: { out: 'qa_outputs' },
} as const;

/** A family of encoders. */
export interface EncoderTraits {
  /** The class here. */
  readonly name: string;
  /** config.json's model_type. */
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
   * Norms are before the branches, absent before the first attention, and behind the last layer
   * under this path. Default: norms are after the branches.
   */
  readonly lastNorm?: string;
  /** Whether the feed-forward block is second(activation(a) * b) of [a, b] = first x. */
  readonly gated?: boolean;
  /** Whether layers and norms have biases. Default true. */
  readonly biases?: boolean;
  /** Whether config.json chooses the vector of a sequence (classifier_pooling). Default false. */
  readonly pools?: boolean;
  readonly heads: EncoderHeads;
  /** Keys with the only supported values; an absent key has the first. */
  readonly only?: Readonly<Record<string, readonly (number | boolean | string | null)[]>>;
  /** Defaults of transformers for absent keys of config.json. */
  readonly defaults?: Readonly<Record<string, number | boolean | string>>;
}
