// Declares how an architecture of GGUF files differs from the common names and keys.
import type { JsonObject } from '../../../types/json.js';
import type { RotarySizes } from '../rotary/config.js';
import type { GgufEntries } from './entries.js';
import type { GgufKeys } from './keys.js';
import type { GgufRule } from './layouts.js';

/** The differences of an architecture from the common names and keys. */
export interface GgufArchitecture {
  /** The value of general.architecture. */
  readonly name: string;
  /** Values of model_type in config.json. A read file gets the first; all can be written. */
  readonly modelTypes: readonly [string, ...string[]];
  /** The class in config.json. */
  readonly className: string;
  /** Whether a file with this name has this architecture. Default: all have it. */
  readonly matches?: (keys: GgufKeys) => boolean;
  /** Models that are written so, by config.json, and their description. Default: all. */
  readonly writes?: {
    readonly fits: (config: JsonObject) => boolean;
    readonly expected: string;
  };
  /** Files with experts. Default: they are refused. */
  readonly mixture?: GgufMixture;
  /** Whether rows of queries and keys are stored in pairs. Default: false. */
  readonly isPaired?: boolean;
  /** Whether norms are stored as 1 + weight. Default: false. */
  readonly hasOffsetNorms?: boolean;
  /** A norm of blocks that is stored as it is. */
  readonly plainNorm?: string;
  /** config.json's key of the epsilon of norms with a mean. Default: RMS norms. */
  readonly epsilon?: string;
  /** config.json's key of all biases. Default: attention_bias and mlp_bias. */
  readonly biasKey?: string;
  /**
   * Whether llama.cpp ignores biases, or those of feed-forward blocks. Then models with them are
   * refused. Default: false.
   */
  readonly lacksBiases?: boolean | 'feed';
  /** Whether llama.cpp needs a key head for each query head. Default: false. */
  readonly lacksSharedKeys?: boolean;
  /**
   * Whether blocks may be parallel: their second norm decides, or the key use_parallel_residual.
   * Default: all or none are.
   */
  readonly parallelBy?: 'norm' | 'key';
  /** Whether config.json has rope_parameters instead of keys outside of it. Default: false. */
  readonly hasRopeSection?: boolean;
  /** Whether nothing rotates. Default: false. */
  readonly lacksRope?: boolean;
  /** Start of the names of a block's tensors. Default: "model.layers". */
  readonly blocks?: string;
  /**
   * The name of a matrix that has, for each key head, its queries, the key and the value. The file
   * has them one after another, or in three tensors.
   */
  readonly joined?: { readonly name: string; readonly isSplit: boolean };
  /** The architecture as which files are read. Default: itself. */
  readonly readAs?: string;
  /** Names of tensors outside of blocks that differ from the common ones. */
  readonly outside?: Readonly<Record<string, string>>;
  /** Names of a block's tensors that differ from the common ones. */
  readonly names?: Readonly<Record<string, string>>;
  /** Names that also hold if a file has this tensor. */
  readonly namesIf?: {
    readonly tensor: string;
    readonly names: Readonly<Record<string, string>>;
  };
  /** Tensors of a block with other shapes or values than in Hugging Face's files. */
  readonly rules?: readonly GgufRule[];
  /**
   * Numbers of a block that are lists in the metadata, a value for each layer: the model's name and
   * shape of one, and the key.
   */
  readonly layerNumbers?: readonly LayerNumber[];
  /** Whether attention has latents of queries, keys and values. Default: false. */
  readonly isLatent?: boolean;
  /** Names of experts in Hugging Face's files. Default EXPERTS. */
  readonly experts?: ExpertNames;
  /** Keys of config.json and of the metadata (without the architecture's name), both required. */
  readonly numbers?: Readonly<Record<string, string>>;
  /** Entries of config.json that no key decides. */
  readonly fixed?: Readonly<Record<string, boolean | string | number | null>>;
  /** Names of keys of config.json that differ from Llama's. */
  readonly keys?: Readonly<Record<string, string>>;
  /** Further entries of config.json. */
  readonly more?: (file: {
    readonly has: (tensor: string) => boolean;
    readonly kvHeads: number;
    readonly keys: GgufKeys;
  }) => JsonObject;
  /** Further metadata. */
  readonly written?: (sizes: RotarySizes) => GgufEntries;
  /**
   * Layers with a window: all, all except each `fullEvery`th, or those in a list of the file.
   * Default: no window.
   */
  readonly window?: 'all' | 'listed' | { readonly fullEvery: number };
  /** Whether layers with a window have their own rotary positions. Default: as in Gemma 3. */
  readonly windowRope?: 'base' | 'unscaled';
  /** Whether all layers rotate, in families with layers that do not. Default: false. */
  readonly rotatesAll?: boolean;
  /** Whether layers are gated delta nets, except each nth. Default: false. */
  readonly isDelta?: boolean;
  /** Whether layers without a window have heads of their own. Default: false. */
  readonly hasKinds?: boolean;
}

/** A number of each block. */
interface LayerNumber {
  /** The complete name in a block of the model. */
  readonly modelName: string;
  readonly shape: readonly number[];
  /** The complete key. */
  readonly key: string;
}

/** The mixtures of an architecture. */
export interface GgufMixture {
  readonly modelType: string;
  readonly className: string;
  /** config.json's key of the number of experts. Default: "num_experts". */
  readonly experts?: string;
  /** config.json's key of an expert's width. Default: intermediate_size. */
  readonly width?: string;
  /**
   * Whether weights of a token's experts add up to 1; "key": expert_weights_norm. Default: true.
   */
  readonly normalizes?: boolean | 'key';
  /** Whether scores are sigmoids with a bias for the choice. Default: false. */
  readonly isSigmoid?: boolean;
  /** Whether weights may have a factor. Default: with sigmoids. */
  readonly hasFactor?: boolean;
  /**
   * Whether experts may be in groups. "read": llama.cpp chooses other groups, and models with
   * several are not written. Default: false.
   */
  readonly hasGroups?: boolean | 'read';
  /** Whether files have the width of the shared expert and the number of dense layers between. */
  readonly hasStep?: boolean;
  /** Whether the first layers may be dense (leading_dense_block_count). Default: false. */
  readonly mayLead?: boolean;
  /** The shared expert: of its own width, or of several experts' width. Default: none. */
  readonly shared?: 'gated' | 'ungated';
  /** The router's bias for the choice in Hugging Face's files. */
  readonly choiceBias?: string;
}

/** Names of the router and of an expert's matrices in Hugging Face's files. */
export interface ExpertNames {
  readonly router: string;
  /** A matrix for each expert. */
  readonly gate?: string;
  readonly up?: string;
  /** One tensor of all experts with both, gates first. */
  readonly gateUp?: string;
  /** Default: rules have the experts. */
  readonly down?: string;
}
