// Sizes of models with rotary positions, and the fixed properties of a family.
import { type OptionNames, readOptions } from '../../runtime/options.js';
import { refused, refusedValue } from '../../runtime/refused.js';
import { requireFinite, requireInteger } from '../../runtime/require-number.js';
import { requireType } from '../../runtime/require-type.js';
import type { CausalConfig } from '../causal-lm.js';
import { type MoeConfig, type MoeSizes, type MoeTraits, readMoe } from './mixture.js';
import { ROPE_TYPES, type RopeScaling, requireScaling } from './rope-scaling.js';

/** Number of tokens that a layer's queries see, including their own; null: all. */
export type Window = number | null;

/** Sizes of a model with rotary positions, and the mode of its activations. */
export interface RotaryConfig extends CausalConfig {
  /** Tokens that there are. */
  vocabSize: number;
  /** The longest sequence (max_position_embeddings). */
  maxSeq: number;
  /** Blocks. */
  layers: number;
  /** Heads of queries. */
  heads: number;
  /** Width of the residual stream (hidden_size). */
  channels: number;
  /** Width inside the feed-forward block (intermediate_size). */
  hidden: number;
  /** The experts of the feed-forward blocks, in families that have them. */
  moe?: MoeConfig;
  /**
   * Weight of the routers' load-balancing loss in the total loss (router_aux_loss_coef, if
   * output_router_logits is true). Default 0: not computed. See nn.loadBalancingLoss().
   */
  routerAuxLossCoef?: number;
  /** Key and value heads; each serves heads / kvHeads query heads. Default `heads`. */
  kvHeads?: number;
  /** Width of a head, even. Default channels / heads. */
  headDim?: number;
  /** Of the norms. Default 1e-6. */
  eps?: number;
  /** The base of the rotary frequencies. Default 10000. */
  ropeTheta?: number;
  /** Change of frequencies for longer sequences. Default: no change. */
  ropeScaling?: RopeScaling | null;
  /**
   * The fraction of a head's channels that is rotated (partial_rotary_factor), in (0, 1]: the first
   * floor(factor * headDim) of them, an even number. Only in families with this option; default 1.
   */
  partialRotaryFactor?: number;
  /** Whether the head is the token embedding. Default false. */
  tied?: boolean;
  /** Whether the projections of attention have a bias. Default false. */
  attentionBias?: boolean;
  /** Whether the layers of the feed-forward block have biases. Default false. */
  mlpBias?: boolean;
  /**
   * Number of tokens that queries see, including their own, for all layers or per layer; null: all.
   * Default null.
   */
  window?: Window | readonly Window[];
  /** Fraction of the attention weights that is dropped in training, in [0, 1). Default 0. */
  attentionDropout?: number;
  /**
   * Dropout of a block's contributions to the stream (resid_pdrop), in families with it. Default 0.
   */
  residualDropout?: number;
  /**
   * The token of padding: its row of the embedding starts as zeros and gets no gradient as an
   * input. Default: none.
   */
  padTokenId?: number | null;
  /** Standard deviation of the initial weights. Default 0.02. */
  initializerRange?: number;
  /** Whether to keep one tensor per segment and recompute the rest in the backward. */
  activationCheckpointing?: boolean;
  /**
   * Segments of blocks under activationCheckpointing; default number_checkpoints, else `layers`.
   */
  numberCheckpoints?: number;
  /** Targets that do not count; default -100. */
  ignoreIndex?: number;
}

/** Options of fromPretrained() for such a model; the folder has the rest. */
export type RotaryOptions = Partial<
  Pick<
    RotaryConfig,
    | 'maxSeq'
    | 'attentionDropout'
    | 'residualDropout'
    | 'activationCheckpointing'
    | 'numberCheckpoints'
    | 'ignoreIndex'
    | 'routerAuxLossCoef'
  >
>;

/** Options that only some families have. */
export type Varying =
  | 'attentionBias'
  | 'mlpBias'
  | 'window'
  | 'partialRotaryFactor'
  | 'residualDropout'
  | 'moe'
  | 'routerAuxLossCoef';

/** A complete RotaryConfig. */
export type RotarySizes = Omit<RotaryConfig, 'moe'> &
  Required<Omit<RotaryConfig, Varying | 'numberCheckpoints' | 'ignoreIndex'>> & { moe?: MoeSizes };

/** Always, never, or by the option of this name. */
type Whether = boolean | 'attentionBias' | 'mlpBias';

/** Position settings that files of a family may have. */
export interface RopeTraits {
  /** Whether a part of each head's channels may stay unrotated (partial_rotary_factor). */
  readonly partial: boolean;
  /** The scalings that transformers supports for it. */
  readonly types: readonly RopeScaling['type'][];
  /** Other names of them in files. */
  readonly aliases: Readonly<Record<string, RopeScaling['type']>>;
  /**
   * Whether original_max_position_embeddings stands outside the scaling, whose factor follows from
   * it.
   */
  readonly originalBeside: boolean;
}

/** Settings of most families; "su" is the first name of LongRoPE. */
export const COMMON_ROPE: RopeTraits = {
  ...{ partial: false, types: ROPE_TYPES, aliases: { su: 'longrope' }, originalBeside: false },
};

/**
 * Properties that distinguish a family of models with rotary positions; all families share the
 * rest.
 */
export interface RotaryTraits {
  /** The class here. */
  readonly name: string;
  /** config.json's model_type. */
  readonly modelType: string;
  /** The class of transformers. */
  readonly architecture: string;
  /** Projections with a bias: of queries, keys and values, of attention's output, of the MLP. */
  readonly biases: { readonly qkv: Whether; readonly out: Whether; readonly mlp: Whether };
  /** Whether each head's queries and keys are normalized before rotation. */
  readonly qkNorm: boolean;
  /** Whether attention may have a window: never, the same in all layers, or per layer. */
  readonly window: 'none' | 'uniform' | 'layers';
  /** Supported positions. Default: COMMON_ROPE. */
  readonly rope?: RopeTraits;
  /** Whether queries, keys and values are one matrix, and also gate and up. Default false. */
  readonly packed?: boolean;
  /** Whether config.json may set dropout of the blocks' contributions. Default false. */
  readonly residualDropout?: boolean;
  /**
   * Whether a layer has the window if config.json has no list of layers; `first` is its
   * max_window_layers. Default: layers from `first` on.
   */
  readonly slidesAt?: (layer: number, first: number) => boolean;
  /** The experts of its feed-forward blocks, if it has them. */
  readonly moe?: MoeTraits;
  /** Defaults of transformers for absent keys of config.json, if they differ by family. */
  readonly defaults: Readonly<Record<string, number | boolean | null>>;
}

/** The parameters of blocks: sizes, and properties of the family. */
export interface Body extends Omit<RotarySizes, 'moe'> {
  /** Null if all blocks are dense. */
  moe: MoeSizes | null;
  qkvBias: boolean;
  outBias: boolean;
  mlpBias: boolean;
  qkNorm: boolean;
  packed: boolean;
  residualDropout: number;
  /** Rotated channels of a head, the first ones. */
  rotaryDim: number;
  /** Of each layer. */
  windows: readonly Window[];
}

const COMMON: OptionNames<Omit<RotaryConfig, Varying>> = {
  ...{ vocabSize: true, maxSeq: true, layers: true, heads: true, channels: true, hidden: true },
  ...{ kvHeads: true, headDim: true, eps: true, ropeTheta: true, ropeScaling: true, tied: true },
  ...{ attentionDropout: true, padTokenId: true, initializerRange: true },
  ...{ activationCheckpointing: true, numberCheckpoints: true, ignoreIndex: true },
};
const COUNTS = ['vocabSize', 'maxSeq', 'layers', 'heads', 'channels', 'hidden'] as const;

const MIXED = ['moe', 'routerAuxLossCoef'] as const;

/** The names of options that only some families have. */
function varyingOf({ biases, window, moe, rope, residualDropout }: RotaryTraits): Varying[] {
  const named: Varying[] = Object.values(biases).filter((one) => typeof one === 'string');
  if (window !== 'none') named.push('window');
  if (rope?.partial) named.push('partialRotaryFactor');
  if (residualDropout) named.push('residualDropout');
  return [...new Set([...named, ...(moe ? MIXED : [])])];
}

/** Number of rotated channels of a head, as transformers counts them. */
const rotaryDimOf = (headDim: number, factor = 1): number => Math.floor(headDim * factor);

/**
 * Returns the complete `given` by its own names. Throws DS_ARGUMENT for an option that the family
 * lacks and for invalid sizes.
 */
export function readRotaryConfig(traits: RotaryTraits, given: RotaryConfig): RotarySizes {
  const { name } = traits;
  const varying = varyingOf(traits);
  const names = { ...COMMON, ...Object.fromEntries(varying.map((one) => [one, true as const])) };
  const config = readOptions(name, given, names);
  for (const size of COUNTS) requireInteger(`${name} ${size}`, config[size], 1);
  const flags = ['tied', 'activationCheckpointing', 'attentionBias', 'mlpBias'] as const;
  for (const flag of flags) requireType(`${name} ${flag}`, config[flag] ?? false, 'boolean');
  const { heads, channels, kvHeads = heads, headDim = channels / heads } = config;
  requireInteger(`${name} kvHeads`, kvHeads, 1);
  if (!Number.isInteger(headDim) || headDim < 2 || headDim % 2 !== 0) {
    const expected = 'an even width of heads: channels / heads, or headDim';
    throw refused(`${name} headDim`, expected, String(headDim));
  }
  if (heads % kvHeads !== 0) {
    throw refusedValue(`${name} kvHeads`, `a divisor of ${heads} heads`, kvHeads);
  }
  const { ropeScaling = null, padTokenId = null, attentionDropout = 0 } = config;
  requireRope(traits, config, headDim);
  if (config.window !== undefined) requireWindow(traits, config.window, config.layers);
  const { tied = false, activationCheckpointing = false } = config;
  const { moe: _, ...dense } = config;
  return {
    ...dense,
    ...variedOf(traits, config, varying),
    ...{ kvHeads, headDim, ropeScaling, tied, activationCheckpointing, padTokenId },
    attentionDropout: requireFinite(`${name} attentionDropout`, attentionDropout, 0, 1),
    eps: requireFinite(`${name} eps`, config.eps ?? 1e-6, 0),
    ropeTheta: requireFinite(`${name} ropeTheta`, config.ropeTheta ?? 10_000, Number.MIN_VALUE),
    initializerRange: requireFinite(`${name} initializerRange`, config.initializerRange ?? 0.02, 0),
  };
}

/** Returns the complete options of `varying`. Throws DS_ARGUMENT. */
function variedOf(
  { name, moe }: RotaryTraits,
  config: RotaryConfig,
  varying: readonly Varying[],
): Partial<RotarySizes> {
  const switched = varying.filter((one) => one === 'attentionBias' || one === 'mlpBias');
  const { partialRotaryFactor = 1, residualDropout = 0, routerAuxLossCoef = 0 } = config;
  const has = (one: Varying): boolean => varying.includes(one);
  return {
    ...(moe && {
      moe: readMoe(name, moe, config.moe, config),
      routerAuxLossCoef: requireFinite(`${name} routerAuxLossCoef`, routerAuxLossCoef, 0),
    }),
    ...Object.fromEntries(switched.map((one) => [one, config[one] ?? false])),
    ...(has('window') && { window: config.window ?? null }),
    ...(has('partialRotaryFactor') && { partialRotaryFactor }),
    ...(has('residualDropout') && {
      residualDropout: requireFinite(`${name} residualDropout`, residualDropout, 0, 1),
    }),
  };
}

function requireRope(
  { name, rope = COMMON_ROPE }: RotaryTraits,
  { partialRotaryFactor: factor, ropeScaling }: RotaryConfig,
  headDim: number,
): void {
  if (factor !== undefined) requireFinite(`${name} partialRotaryFactor`, factor, Number.MIN_VALUE);
  const rotaryDim = rotaryDimOf(headDim, factor);
  if (rotaryDim < 2 || rotaryDim > headDim || rotaryDim % 2 !== 0) {
    const expected = `a share that makes 2 or more of ${headDim} channels rotary, an even number`;
    throw refusedValue(`${name} partialRotaryFactor`, expected, factor);
  }
  if (ropeScaling) requireScaling(`${name} ropeScaling`, ropeScaling, rotaryDim, rope.types);
}

function requireWindow(
  { name, window: kind }: RotaryTraits,
  given: Window | readonly Window[],
  layers: number,
): void {
  const op = `${name} window`;
  const isList = Array.isArray(given);
  if (isList && (kind !== 'layers' || given.length !== layers)) {
    const expected =
      kind === 'layers' ? `a window for each of ${layers} layers` : 'one window for all layers';
    throw refusedValue(op, expected, given);
  }
  const all = (isList ? given : [given]) as readonly Window[];
  for (const one of all) if (one !== null) requireInteger(op, one, 1);
  const widths = new Set(all.filter((one) => one !== null));
  if (widths.size > 1) throw refusedValue(op, 'the same width for all layers with a window', given);
}

/** The window of each layer. */
export function windowsOf({ window = null, layers }: RotarySizes): readonly Window[] {
  return Array.isArray(window) ? window : Array.from({ length: layers }, () => window as Window);
}

/** Combines the sizes with the properties of the family. */
export function bodyOf({ biases, qkNorm, packed = false }: RotaryTraits, sizes: RotarySizes): Body {
  const has = (whether: Whether): boolean =>
    typeof whether === 'string' ? (sizes[whether] ?? false) : whether;
  const { maxSeq, headDim, partialRotaryFactor, residualDropout = 0 } = sizes;
  // A window of at least the longest sequence hides nothing.
  const windows = windowsOf(sizes).map((one) => (one !== null && one >= maxSeq ? null : one));
  return {
    ...sizes,
    ...{ qkvBias: has(biases.qkv), outBias: has(biases.out), mlpBias: has(biases.mlp) },
    ...{ qkNorm, packed, residualDropout, windows, moe: sizes.moe ?? null },
    rotaryDim: rotaryDimOf(headDim, partialRotaryFactor),
  };
}
