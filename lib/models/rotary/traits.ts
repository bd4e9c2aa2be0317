// The declaration of a family: properties that all its models share, as data.
import type { JsonObject } from '../../../types/json.js';
import type { MoeTraits } from './mixture.js';
import { ROPE_TYPES, type RopeScaling } from './rope-scaling.js';

/** Whether a projection has a bias: always, never, or if the option of this name is true. */
export type OptionSwitch = boolean | 'attentionBias' | 'mlpBias';

/** Projections with a bias. */
interface BiasTraits {
  /** Queries, keys and values. */
  readonly qkv: OptionSwitch;
  /** Attention's output. */
  readonly out: OptionSwitch;
  /** The feed-forward block. */
  readonly mlp: OptionSwitch;
  /** The head. Default: false. */
  readonly head?: boolean;
  /** config.json's key for the option attentionBias. Default: attention_bias. */
  readonly key?: string;
}

/** Names of the norms before and after a branch; null: no norm. */
type AroundBranch = readonly [before: string | null, after: string | null];

/** The norms of a block. An absent norm before the MLP of a parallel block is the attention's. */
export interface BlockNorms {
  readonly attention: AroundBranch;
  readonly mlp: AroundBranch;
}

/** Llama's: a norm before each branch. */
export const PRE_NORMS: BlockNorms = {
  attention: ['input_layernorm', null],
  mlp: ['post_attention_layernorm', null],
};

/** OLMo 2's: a norm after each branch. */
export const POST_NORMS: BlockNorms = {
  attention: [null, 'post_attention_layernorm'],
  mlp: [null, 'post_feedforward_layernorm'],
};

/** Gemma 2's: a norm on both sides of each branch. */
export const NORMS_AROUND: BlockNorms = {
  attention: ['input_layernorm', 'post_attention_layernorm'],
  mlp: ['pre_feedforward_layernorm', 'post_feedforward_layernorm'],
};

/** Cohere's: one norm before both branches. */
export const ONE_NORM: BlockNorms = { attention: ['input_layernorm', null], mlp: [null, null] };

/** The formula and the places of norms. */
interface NormTraits {
  /**
   * RMSNorm, also without a weight ("bareRms"); LayerNorm with weight and bias, with a weight only,
   * or with neither. Default: "rms".
   */
  readonly kind?: 'rms' | 'bareRms' | 'layer' | 'layerNoBias' | 'plain';
  /** Whether norms multiply by 1 + weight; only RMSNorm and LayerNorm with both. Default: false. */
  readonly offset?: boolean;
  /** config.json's key of eps, and transformers' default. Default: rms_norm_eps, 1e-6. */
  readonly eps?: readonly [key: string, fallback: number];
  /** Norms around the branches of a block. Default: PRE_NORMS. */
  readonly block?: BlockNorms;
  /** Name of the norm behind the last block. Default: "norm". */
  readonly last?: string;
}

/** Models that may normalize the sums of stream and branch, and may have a narrow embedding. */
interface SumTraits {
  /**
   * config.json's key that is false for norms of the sums, without a last norm; and transformers'
   * default.
   */
  readonly key: readonly [name: string, fallback: boolean];
  /** config.json's key of the width of the embedding. Default: hidden_size. */
  readonly width: string;
}

/** Blocks that add both branches of one stream: x + attention(norm x) + mlp(norm x). */
interface ParallelTraits {
  /** config.json's key that enables them, and transformers' default; null: always. */
  readonly key: readonly [name: string, fallback: boolean] | null;
  /** The norms of a parallel block. */
  readonly block: BlockNorms;
}

/** The function inside the feed-forward block. */
export type Activation = 'silu' | 'gelu' | 'geluTanh' | 'relu' | 'relu2';

/** The activation, and its key and names in config.json; the first name is written. */
interface ActivationTraits {
  /** "xielu" has parameters, and needs a block without a gate. */
  readonly kind: Activation | 'xielu';
  /** config.json's key of the activation. Default: "hidden_act". */
  readonly key?: string;
  /** Its names in config.json. */
  readonly names: readonly string[];
}

/** The activation of Llama. */
export const SILU: ActivationTraits = { kind: 'silu', names: ['silu', 'swish'] };

/** Names of a feed-forward block without a gate: second(activation(first x)). */
export interface PlainNames {
  readonly first: string;
  readonly second: string;
}

/** Names of modules that differ from Llama's, as in transformers and in the files. */
interface ModuleNames {
  /**
   * The module with all blocks; "model.decoder" is a module inside of another. Default: "model".
   */
  readonly model?: string;
  /** The embedding of tokens. Default: "embed_tokens". */
  readonly embed?: string;
  /** Name of a norm behind the embedding. Default: none. */
  readonly embedNorm?: string;
  /** The list of blocks. Default: "layers". */
  readonly layers?: string;
  /**
   * The attention of a block; "attn.attention" is a module inside of another. Default: "self_attn".
   */
  readonly attention?: string;
  /** The norm of queries. Default: "q_norm". */
  readonly qNorm?: string;
  /** The norm of keys. Default: "k_norm". */
  readonly kNorm?: string;
  /** One projection for queries, keys and values. Default: "qkv_proj". */
  readonly qkv?: string;
  /** The head. Default: "lm_head". */
  readonly head?: string;
}

/** Position settings that files of a family may have. */
export interface RopeTraits {
  /** Whether a part of each head's channels may stay unrotated (partial_rotary_factor). */
  readonly partial: boolean;
  /** transformers' default of partial_rotary_factor. Default: 1. */
  readonly partialFallback?: number;
  /** config.json's key of the number of rotated channels, and its default. Default: a share. */
  readonly width?: readonly [key: string, fallback: number];
  /** Keys of transformers 4 for rope_theta and partial_rotary_factor. Default: these names. */
  readonly keys?: { readonly theta: string; readonly partial: string };
  /** Key of the number of rotated channels in files without partial_rotary_factor. */
  readonly otherWidth?: string;
  /** Whether llama_4_scaling_beta scales queries by their position. Default: false. */
  readonly scalesQueries?: boolean;
  /** Whether a dynamic scaling may have `alpha`, which fixes a larger base. Default: false. */
  readonly alpha?: boolean;
  /** The scalings that transformers supports for it. */
  readonly types: readonly RopeScaling['type'][];
  /** Other names of them in files. */
  readonly aliases: Readonly<Record<string, RopeScaling['type'] | 'default'>>;
  /**
   * Whether original_max_position_embeddings stands outside rope_scaling; the factor then follows
   * from it.
   */
  readonly originalBeside: boolean;
  /** Keys for pictures, which change nothing for text. Default: none. */
  readonly ofPictures?: readonly string[];
  /** Whether channels 2i and 2i + 1 are a pair; otherwise i and i + R / 2. Default: false. */
  readonly interleaved?: boolean;
  /** Whether channels turn in the other direction. Default: false. */
  readonly backward?: boolean;
  /**
   * Layers that do not rotate. "all"; "listed": config.json lists them (no_rope_layers). "unnamed":
   * all, unless position_embedding_type is "rope". "unwindowed": layers without a window.
   * "unwindowedIfMixed": the same if another layer has a window.
   */
  readonly off?: 'all' | 'listed' | 'unnamed' | 'unwindowed' | 'unwindowedIfMixed';
  /**
   * Layers with a window have their own base frequency, without a scaling. The key of transformers
   * 4 for it, and its default; null: rope_theta.
   */
  readonly ofWindows?: { readonly key: string | null; readonly fallback: number };
  /** transformers' rope_parameters of files without a scaling. Default: none. */
  readonly unset?: JsonObject;
  /** Whether config.json has rope_parameters only, without the keys of transformers 4. */
  readonly sectionsOnly?: boolean;
}

/** A learned embedding of positions. */
export interface PositionTable {
  readonly table: string;
  /** The row of the first position. */
  readonly offset: number;
}

/**
 * Multimodal folders that hold a language model of the family that their text_config names. In
 * transformers they do not scale logits, so families with such a scale are not among them.
 */
export const AROUND_TEXT: readonly string[] = [
  'idefics3',
  'internvl',
  'llava',
  'llava_next',
  'smolvlm',
];

/** Settings of most families; "su" is the first name of LongRoPE. */
export const COMMON_ROPE: RopeTraits = {
  partial: false,
  types: ROPE_TYPES,
  aliases: { su: 'longrope' },
  originalBeside: false,
};

/** A scale from config.json: the number at `key`, raised to `power`. */
export interface ScaleTraits {
  /** The key of the number in config.json. */
  readonly key: string;
  /** The exponent of the number. Default: 1. */
  readonly power?: 1 | -1 | -0.5;
  /** The factor is divided by the root of the layers or of a head's width, or by the channels. */
  readonly per?: 'rootLayers' | 'channels' | 'rootHead';
  /** transformers' default; null: none. */
  readonly fallback: number | null;
}

/** The numbers that scale or bound values of a model. */
interface ScalesTraits {
  /** Scale of the products of queries and keys; 1: none. Default: 1 / sqrt(headDim). */
  readonly scores?: ScaleTraits | 1;
  /**
   * Scale of the embedding; "rootChannels": sqrt(channels), rounded to the dtype of the weights.
   */
  readonly embed?: ScaleTraits | 'rootChannels';
  /** Scale of each branch before it joins the residual stream. */
  readonly residual?: ScaleTraits;
  /** Scale of the logits. */
  readonly logits?: ScaleTraits;
  /** Bound c of scores: c tanh(score / c). */
  readonly scoreCap?: ScaleTraits;
  /** Bound c of logits: c tanh(logit / c). */
  readonly logitCap?: ScaleTraits;
  /** Bound of queries, keys and values, on both sides. */
  readonly clip?: ScaleTraits;
}

/** Layers of gated delta nets. */
interface DeltaTraits {
  /**
   * Whether in_proj_qkvz and in_proj_ba have all projections, key head by key head; otherwise
   * in_proj_qkv, in_proj_z, in_proj_b and in_proj_a.
   */
  readonly joined: boolean;
}

/** State space layers (Mamba-2). */
export interface MambaTraits {
  /** The key of config.json that lists them; "all": each layer is one. */
  readonly layers: 'layer_types' | 'attn_layer_indices' | 'layers_block_type' | 'all';
  /** Whether the norm of results has the groups of B and C. Default: all channels together. */
  readonly normGroups?: boolean;
  /** config.json's key of the least time step, and its default. Default: time_step_limit. */
  readonly least?: readonly [key: string, fallback: number];
  /** Whether heads * headDim may differ from mamba_expand * hidden_size. Default: false. */
  readonly anyWidth?: boolean;
  /**
   * config.json's key of heads * headDim, and its default. Default: mamba_expand times channels.
   */
  readonly width?: readonly [key: string, fallback: number];
  /** Whether these layers have attention too, and a block adds both results. Default: false. */
  readonly besideAttention?: boolean;
  /** Whether models choose the norm of results. Default: of the gated results. */
  readonly choosesNorm?: boolean;
  /** Another key of the bias of out_proj, which equals the bias of in_proj. Default: none. */
  readonly outBias?: string;
}

/** The names of scales with a key. */
export type ScaleName = keyof ScalesTraits;

/**
 * Properties that distinguish a family of models with rotary positions; all families share the
 * rest.
 */
export interface RotaryTraits {
  /** Name of the class in nn.models. */
  readonly name: string;
  /** config.json's model_type. */
  readonly modelType: string;
  /** Other values of model_type for this computation, with defaults that differ. Default: none. */
  readonly alsoTypes?: Readonly<Record<string, JsonObject>>;
  /**
   * Whether files may have further layers that predict later tokens; they are not read. "apart":
   * only under other names than the blocks.
   */
  readonly hasPredictors?: boolean | 'apart';
  /** Values of model_type of multimodal folders with this language model. Default: none. */
  readonly textOf?: readonly string[];
  /** Name of the class in transformers. */
  readonly architecture: string;
  /** Which projections have a bias. */
  readonly biases: BiasTraits;
  /**
   * Whether queries and keys are normalized before rotation: each head, or all heads together.
   * "bareHead": each head, without a weight, in layers that rotate. Default: "none".
   */
  readonly qkNorm?: 'none' | 'head' | 'whole' | 'bareHead';
  /** Whether these norms come after the rotation. Default: false. */
  readonly qkNormLast?: boolean;
  /** config.json's key that enables these norms, and transformers' default. Default: always. */
  readonly qkNormKey?: readonly [name: string, fallback: boolean];
  /** Whether each head has a logit without a value in its softmax. Default: false. */
  readonly sinks?: boolean;
  /** Formula and places of the norms. Default: RMS norms before each branch. */
  readonly norm?: NormTraits;
  /** Parallel branches in a block. Default: the MLP follows the attention. */
  readonly parallel?: ParallelTraits;
  /** Norms of sums, and a narrow embedding. Default: none of both. */
  readonly sums?: SumTraits;
  /** The activation of the feed-forward block. Default: SILU. */
  readonly activation?: ActivationTraits;
  /** Whether attention may have a window: never, the same in all layers, or per layer. */
  readonly window: 'none' | 'uniform' | 'layers';
  /**
   * Positions of families without rotation: "alibi" adds a slope times the distance to the scores;
   * a table of this name adds its row `offset` + position to the embedding. Default: rotation.
   */
  readonly positions?: 'alibi' | PositionTable;
  /** Supported rotary positions. Default: COMMON_ROPE. */
  readonly rope?: RopeTraits;
  /** Numbers that scale or bound values. Default: none. */
  readonly scales?: ScalesTraits;
  /** Whether constant factors scale values inside the branches of a block. Default: false. */
  readonly multipliers?: boolean;
  /** The number of key and value heads, if all models of the family have the same. */
  readonly keyHeads?: 1;
  /** Whether queries, keys and values are one matrix, and also gate and up. Default: false. */
  readonly packed?: boolean;
  /**
   * Whether queries, keys and values pass through latents of few channels, and only a part of each
   * head's channels is rotated. Default: false.
   */
  readonly latent?: boolean;
  /**
   * One projection of this name has, for each key head, its queries, the key and the value.
   * Default: none.
   */
  readonly perHead?: string;
  /** Whether several queries share a key head in that projection. Default: false. */
  readonly perGroup?: boolean;
  /**
   * The key of config.json with the number of tokens that an indexer chooses for a query. In
   * sequences of at most this length, it chooses all tokens, so attention is dense. The family
   * allows no longer sequences, and does not read the indexers. Default: none.
   */
  readonly denseUpTo?: string;
  /** Whether some layers have a gated short convolution instead of attention. Default: false. */
  readonly conv?: boolean;
  /**
   * Whether layers that rotate attend within chunks of tokens, and the others scale their queries
   * by position. Default: false.
   */
  readonly chunked?: boolean;
  /** State space layers, in models that have them. Default: none. */
  readonly mamba?: MambaTraits;
  /**
   * Whether each block has one branch: a state space layer, attention, or a feed-forward block.
   * Default: a feed-forward block follows each other branch.
   */
  readonly oneBranch?: boolean;
  /** Gated delta net layers between those with attention. Default: none. */
  readonly delta?: DeltaTraits;
  /**
   * Whether layers without a window have heads of their own, the last layers may read keys and
   * values of earlier ones, and blocks may get a further embedding. Values are normalized, and a
   * stored number scales the result of a block. Default: false.
   */
  readonly layerKinds?: boolean;
  /**
   * Whether the stream has several versions of each token's vector. Blocks then have low-rank
   * residuals, gates may be sparse, and all layers have equal heads. Default: false.
   */
  readonly altUp?: boolean;
  /**
   * Whether q_proj has, for each head, its query and a gate of its result. "apart": gate_proj has
   * the gates. Default: false.
   */
  readonly gated?: boolean | 'apart';
  /** Whether the head divides its rows by their norms. Default: false. */
  readonly normalizedHead?: boolean;
  /** Names of modules that differ from Llama's. Default: none. */
  readonly names?: ModuleNames;
  /** The feed-forward block. Default: "packed" if `packed`, else "gated". */
  readonly feed?: 'gated' | 'packed' | PlainNames;
  /** Name of attention's output projection. Default: "o_proj". */
  readonly out?: string;
  /** config.json's key of the dropout of the blocks' contributions, in families with it. */
  readonly residualDropout?: string;
  /**
   * Whether a layer has the window if config.json has no list of layers; `first` is its
   * max_window_layers. Default: layers from `first` on.
   */
  readonly slidesAt?: (layer: number, first: number) => boolean;
  /** Whether sliding_window alone enables windows by layer. Default: use_sliding_window has to. */
  readonly unswitched?: boolean;
  /**
   * Without a list of layers, layer i has a window unless this number divides i + 1; it is the
   * value of the key, or the default. A text such as "LLLG" is a pattern that repeats; the last
   * layer then has no window. Replaces slidesAt, and the switch use_sliding_window.
   */
  readonly windowEvery?: readonly [key: string | null, fallback: number];
  /** Names of a layer's attention in attention_types, which then lists all layers. */
  readonly attentionTypes?: { readonly full: string; readonly window: string };
  /** The supported entries of layer_types; the first is written. Default: any. */
  readonly layerTypes?: readonly [string, ...string[]];
  /** Further entries of config.json that are the same in all models. Default: none. */
  readonly written?: JsonObject;
  /** Whether published models overflow in f16, which is then refused. Default: false. */
  readonly overflowsF16?: boolean;
  /** The experts of its feed-forward blocks, if it has them. */
  readonly moe?: MoeTraits;
  /** Names in the files that differ from those in memory, `*` for a number. Default: none. */
  readonly files?: Readonly<Record<string, string>>;
  /** Keys of config.json under other names than Llama's. Default: none. */
  readonly keys?: Readonly<Record<string, string>>;
  /** Keys of older files by the names that replace them. Default: none. */
  readonly others?: Readonly<Record<string, string>>;
  /** Keys with the only supported values; an absent key has the first. Default: none. */
  readonly only?: Readonly<Record<string, readonly (number | boolean | string | null)[]>>;
  /** Defaults of transformers for absent keys of config.json, if they differ by family. */
  readonly defaults: JsonObject;
}
