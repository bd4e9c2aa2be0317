// Sizes of models with rotary positions, and the parameters of their blocks.

import { argumentError, valueError } from '../../runtime/input-errors.js';
import { namesOf, readOptions } from '../../runtime/options.js';
import { requireFinite, requireInteger } from '../../runtime/require-number.js';
import { requireType } from '../../runtime/require-type.js';
import { keysOf } from '../../runtime/typed-keys.js';
import type { CausalConfig } from '../causal-lm.js';
import { AlibiSlopes } from './alibi.js';
import { type AltUpConfig, type AltUpSizes, readAltUp } from './alt-up-config.js';
import { type QueryScale, readChunked } from './chunk-options.js';
import { type ConvSizes, readConv } from './conv-config.js';
import { type DeltaSizes, readDelta } from './delta-config.js';
import { type FullHeads, readLayerKinds, type SharedKeys } from './kind-options.js';
import { type MambaConfig, type MambaSizes, readFeedLayers, readMamba } from './mamba-config.js';
import { hasLoads, isOptional, type MoeConfig, type MoeSizes, readMoe } from './mixture.js';
import { type AllMultipliers, type Multipliers, readMultipliers } from './multipliers.js';
import {
  computeRotaryDim,
  type LatentSizes,
  requireLatent,
  requireLayers,
  requireRope,
  requireWindow,
  type Window,
} from './require-config.js';
import type { RopeScaling } from './rope-scaling.js';
import { computeFactors, readScales, type ScaleFactors, type Scales } from './scales.js';
import { type BlockNorms, type OptionSwitch, PRE_NORMS, type RotaryTraits } from './traits.js';

export type { LatentSizes, Window } from './require-config.js';

/** Sizes of a model with rotary positions, and the mode of its activations. */
export interface RotaryConfig extends CausalConfig {
  /** Number of tokens in the vocabulary. */
  vocabSize: number;
  /** The longest sequence (max_position_embeddings). */
  maxSeq: number;
  /** Number of blocks. */
  layers: number;
  /** Number of query heads. */
  heads: number;
  /** Width of the residual stream (hidden_size). */
  channels: number;
  /** Width inside the feed-forward block (intermediate_size). */
  hidden: number;
  /** The experts of the feed-forward blocks, in families that have them. */
  moe?: MoeConfig;
  /**
   * Weight of the routers' load-balancing loss in the total loss (router_aux_loss_coef, if
   * output_router_logits is true). Default: 0: not computed. See nn.loadBalancingLoss().
   */
  routerAuxLossCoef?: number;
  /** Key and value heads; each serves heads / kvHeads query heads. Default: `heads`. */
  kvHeads?: number;
  /** Width of a head, even. Default: channels / heads. */
  headDim?: number;
  /** Widths of latent attention, in families that have it; they determine headDim. */
  latent?: LatentSizes;
  /** Layers of gated delta nets, in families that have them. */
  delta?: DeltaSizes;
  /**
   * Layers that rotate see the tokens of their own chunk of this many tokens
   * (attention_chunk_size), in families with chunks; null: all tokens. Default: null.
   */
  attentionChunk?: number | null;
  /** Scale of queries in layers that do not rotate, in the same families. Default: null, none. */
  queryScale?: QueryScale | null;
  /** Layers with a gated short convolution, in families that have them. */
  conv?: ConvSizes;
  /** State space layers, in families that have them; null: no layer. Default: null. */
  mamba?: MambaConfig | null;
  /**
   * In families with one branch for each block: true for blocks with a feed-forward branch, false
   * for blocks with attention or a state space layer. Default: no block has a feed-forward branch.
   */
  feedLayers?: readonly boolean[];
  /** Heads of layers without a window, in families where they differ. Default: as the others. */
  full?: FullHeads | null;
  /**
   * Layers that read keys and values of earlier ones, in families that have them. Default: none.
   */
  sharedKeys?: SharedKeys | null;
  /**
   * Width of the further embedding of tokens that each block gets (hidden_size_per_layer_input), in
   * families that have it; null: none. Default: null.
   */
  layerInputDim?: number | null;
  /** Versions of the stream, in families that have them. */
  altUp?: AltUpConfig;
  /** Epsilon of the norms. Default: 1e-6. */
  eps?: number;
  /** The base of the rotary frequencies. Default: 10000. */
  ropeTheta?: number;
  /** Change of frequencies for longer sequences. Default: no change. */
  ropeScaling?: RopeScaling | null;
  /**
   * The fraction of a head's channels that is rotated (partial_rotary_factor), in (0, 1]: the first
   * floor(factor * headDim) of them, an even number. Only in families with this option; default 1.
   */
  partialRotaryFactor?: number;
  /**
   * Whether each layer rotates its queries and keys, in families with layers that do not. Default:
   * all layers.
   */
  ropeLayers?: readonly boolean[];
  /** The base of the rotary frequencies of layers with a window, in families that have one. */
  windowRopeTheta?: number;
  /** The family's numbers that scale or bound values, as in its config.json. */
  scales?: Scales;
  /** Constant factors inside the branches of a block, in families that have them. */
  multipliers?: Multipliers;
  /** Whether blocks add both branches of one stream, in families with both kinds of blocks. */
  parallel?: boolean;
  /**
   * Whether norms are behind the sums of stream and branch, without a last norm, in families with
   * both kinds of models. Default: false.
   */
  sumNorms?: boolean;
  /**
   * Width of the embedding and the head, in families that may project it to the channels. Default
   * `channels`.
   */
  embedDim?: number;
  /** Whether queries and keys are normalized, in families with both kinds of models. */
  qkNorm?: boolean;
  /** Whether the head is the token embedding. Default: false. */
  tied?: boolean;
  /** Whether the projections of attention have a bias. Default: false. */
  attentionBias?: boolean;
  /** Whether the layers of the feed-forward block have biases. Default: false. */
  mlpBias?: boolean;
  /**
   * Number of tokens that queries see, including their own, for all layers or per layer; null: all.
   * Default: null.
   */
  window?: Window | readonly Window[];
  /** Fraction of the attention weights that is dropped in training, in [0, 1). Default: 0. */
  attentionDropout?: number;
  /**
   * Dropout of a block's contributions to the stream (resid_pdrop), in families with it. Default:
   * 0.
   */
  residualDropout?: number;
  /**
   * The token of padding: its row of the embedding starts as zeros and gets no gradient as an
   * input. Default: none.
   */
  padTokenId?: number | null;
  /** Standard deviation of the initial weights. Default: 0.02. */
  initializerRange?: number;
  /** Whether to keep one tensor per segment and recompute the rest in the backward. */
  activationCheckpointing?: boolean;
  /**
   * Number of segments that activationCheckpointing recomputes. Default: number_checkpoints, else
   * `layers`.
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
export type FamilyOption =
  | 'attentionBias'
  | 'mlpBias'
  | 'window'
  | 'partialRotaryFactor'
  | 'residualDropout'
  | 'ropeLayers'
  | 'windowRopeTheta'
  | 'scales'
  | 'multipliers'
  | 'parallel'
  | 'sumNorms'
  | 'embedDim'
  | 'latent'
  | 'delta'
  | 'conv'
  | 'attentionChunk'
  | 'queryScale'
  | 'mamba'
  | 'feedLayers'
  | 'full'
  | 'sharedKeys'
  | 'layerInputDim'
  | 'altUp'
  | 'qkNorm'
  | 'moe'
  | 'routerAuxLossCoef';

/** A RotaryConfig with only these of the options that vary by family. */
export type FamilyConfig<Own extends FamilyOption = never> = Omit<
  RotaryConfig,
  Exclude<FamilyOption, Own>
>;

/** A complete RotaryConfig. */
export type RotarySizes = Omit<RotaryConfig, 'moe' | 'mamba' | 'altUp'> &
  Required<Omit<RotaryConfig, FamilyOption | 'numberCheckpoints' | 'ignoreIndex'>> & {
    moe?: MoeSizes;
    mamba?: MambaSizes | null;
    multipliers?: AllMultipliers;
    altUp?: AltUpSizes;
  };

/** The parameters of blocks: sizes, and properties of the family. */
export interface BodySizes extends Omit<RotarySizes, 'moe' | 'scales'> {
  /** The declaration of the family. */
  traits: RotaryTraits;
  /** Null if all blocks are dense. */
  moe: MoeSizes | null;
  qkvBias: boolean;
  outBias: boolean;
  mlpBias: boolean;
  residualDropout: number;
  /** Rotated channels of a head, the first ones. */
  rotaryDim: number;
  /** The window of each layer. */
  windows: readonly Window[];
  /** Whether a layer is of the kind without a window. */
  isFull: readonly boolean[];
  /** Whether a layer rotates queries and keys. */
  rotates: readonly boolean[];
  /** Whether a layer has the angles of layers with a window. */
  ownAngles: readonly boolean[];
  /** The base frequency of those angles; null: the family has one table. */
  windowTheta: number | null;
  isParallel: boolean;
  /** Slopes of the scores' bias by distance; null: none. */
  slopes: AlibiSlopes | null;
  /** The norms of a block. */
  norms: BlockNorms;
  factors: ScaleFactors;
}

/** Options of all families. */
type CommonOptions = FamilyConfig;

const COUNTS = [
  'vocabSize',
  'maxSeq',
  'layers',
  'heads',
  'channels',
  'hidden',
] as const satisfies (keyof CommonOptions)[];

const MIXED = ['moe', 'routerAuxLossCoef'] as const;

/** The names of options that only some families have. */
function readVarying(traits: RotaryTraits): FamilyOption[] {
  const {
    biases,
    window,
    moe,
    rope,
    residualDropout,
    scales,
    parallel,
    latent,
    delta,
    conv,
    chunked,
    mamba,
    layerKinds,
  } = traits;
  const { qkv, out, mlp } = biases;
  const switchValues: Readonly<Partial<Record<FamilyOption, unknown>>> = {
    window: window !== 'none',
    partialRotaryFactor: rope?.partial,
    ropeLayers: rope?.off === 'listed' || rope?.off === 'unnamed',
    windowRopeTheta: rope?.ofWindows,
    residualDropout,
    scales,
    parallel: parallel?.key,
    sumNorms: traits.sums,
    embedDim: traits.sums,
    latent,
    delta,
    conv,
    attentionChunk: chunked,
    queryScale: chunked,
    multipliers: traits.multipliers,
    mamba,
    feedLayers: traits.oneBranch,
    qkNorm: traits.qkNormKey,
    full: layerKinds && !traits.altUp,
    sharedKeys: layerKinds,
    layerInputDim: layerKinds,
    altUp: traits.altUp,
  };
  const switchedOptions = [qkv, out, mlp].filter((whether) => typeof whether === 'string');
  const used = keysOf(switchValues).filter((key) => switchValues[key]);
  const mixed = moe && !hasLoads(moe) ? MIXED.slice(0, 1) : MIXED;
  return [...new Set([...switchedOptions, ...used, ...(moe ? mixed : [])])];
}

/**
 * Returns `options` with all defaults. Throws DS_ARGUMENT for an option that the family lacks and
 * for invalid sizes.
 */
export function readRotaryConfig(traits: RotaryTraits, options: RotaryConfig): RotarySizes {
  const { name } = traits;
  const varying = readVarying(traits);
  const names = {
    ...namesOf.CommonOptions,
    ...Object.fromEntries(varying.map((varying) => [varying, true as const])),
  };
  const config = readOptions(name, options, names);
  for (const size of COUNTS) requireInteger(`${name} ${size}`, config[size], 1);
  const flags = ['attentionBias', 'mlpBias'] as const;
  for (const flag of flags) requireType(`${name} ${flag}`, config[flag] ?? false, 'boolean');
  const latent = traits.latent ? requireLatent(traits, config) : null;
  const { heads, channels, kvHeads = traits.keyHeads ?? heads } = config;
  const { headDim = latent ? latent.plainDim + latent.rotaryDim : channels / heads } = config;
  requireInteger(`${name} kvHeads`, kvHeads, 1);
  if (!Number.isInteger(headDim) || headDim < 2 || headDim % 2 !== 0) {
    const expected = 'an even width of heads: channels / heads, or headDim';
    throw argumentError(`${name} headDim`, expected, String(headDim));
  }
  if (heads % kvHeads !== 0) {
    throw valueError(`${name} kvHeads`, `a divisor of ${heads} heads`, kvHeads);
  }
  if (traits.keyHeads && kvHeads !== traits.keyHeads) {
    throw valueError(`${name} kvHeads`, `${traits.keyHeads}, as in all its models`, kvHeads);
  }
  if (latent && (kvHeads !== heads || headDim !== latent.plainDim + latent.rotaryDim)) {
    const expected = `${heads} kvHeads, and a headDim of plainDim + rotaryDim`;
    throw argumentError(`${name} heads`, expected, `${kvHeads} and ${headDim}`);
  }
  const isShared = kvHeads !== heads && !traits.perGroup;
  if (traits.perHead && (isShared || headDim !== channels / heads)) {
    const expected = `${heads} kvHeads, and a headDim of channels / heads`;
    throw argumentError(`${name} heads`, expected, `${kvHeads} and ${headDim}`);
  }
  const { ropeScaling = null, padTokenId = null, attentionDropout = 0 } = config;
  requireRope(traits, config, latent?.rotaryDim ?? headDim);
  if (config.window !== undefined) requireWindow(traits, config.window, config.layers);
  const { tied = false, activationCheckpointing = false } = config;
  const { moe: _, mamba: __, multipliers: ___, altUp, ...dense } = config;
  const isFull = readWindows(config).map((window) => window === null);
  return {
    ...dense,
    ...(traits.layerKinds && readLayerKinds(name, config, { heads, kvHeads, isFull })),
    ...(traits.altUp && { altUp: readAltUp(name, altUp, config) }),
    ...readVaried(traits, config, varying),
    kvHeads,
    headDim,
    ropeScaling,
    tied,
    activationCheckpointing,
    padTokenId,
    attentionDropout: requireFinite(`${name} attentionDropout`, attentionDropout, 0, 1),
    eps: requireFinite(`${name} eps`, config.eps ?? 1e-6, 0),
    ropeTheta: requireFinite(`${name} ropeTheta`, config.ropeTheta ?? 10_000, Number.MIN_VALUE),
    initializerRange: requireFinite(`${name} initializerRange`, config.initializerRange ?? 0.02, 0),
  };
}

/** Returns the complete options of `varying`. Throws DS_ARGUMENT for a value out of range. */
function readVaried(
  traits: RotaryTraits,
  config: RotaryConfig,
  varying: readonly FamilyOption[],
): Partial<RotarySizes> {
  const { name, moe, rope, parallel } = traits;
  const switched = varying.filter(
    (varying) => varying === 'attentionBias' || varying === 'mlpBias',
  );
  const { residualDropout = 0, routerAuxLossCoef = 0, layers } = config;
  const { partialRotaryFactor = rope?.partialFallback ?? 1 } = config;
  const { windowRopeTheta = rope?.ofWindows?.fallback } = config;
  const has = (item: FamilyOption): boolean => varying.includes(item);
  return {
    ...(moe && (config.moe || !isOptional(moe)) && { moe: readMoe(name, moe, config.moe, config) }),
    ...(has('routerAuxLossCoef') && {
      routerAuxLossCoef: requireFinite(`${name} routerAuxLossCoef`, routerAuxLossCoef, 0),
    }),
    ...Object.fromEntries(switched.map((item) => [item, config[item] ?? false])),
    ...(has('delta') && { delta: readDelta(name, config.delta, layers) }),
    ...(has('conv') && { conv: readConv(name, config.conv, layers) }),
    ...(has('attentionChunk') && readChunked(name, config)),
    ...(has('feedLayers') && { feedLayers: readFeedLayers(name, config) }),
    ...(has('mamba') && { mamba: readMamba(traits, config.mamba, layers) }),
    ...(has('window') && { window: config.window ?? null }),
    ...(has('partialRotaryFactor') && { partialRotaryFactor }),
    ...(has('ropeLayers') && { ropeLayers: readRopeLayers(traits, config) }),
    ...(has('windowRopeTheta') && {
      windowRopeTheta: requireFinite(`${name} windowRopeTheta`, windowRopeTheta, Number.MIN_VALUE),
    }),
    ...(has('scales') && { scales: readScales(traits, config.scales) }),
    ...(has('multipliers') && { multipliers: readMultipliers(name, config.multipliers) }),
    ...(has('parallel') && {
      parallel: requireType(
        `${name} parallel`,
        config.parallel ?? parallel?.key?.[1] ?? false,
        'boolean',
      ),
    }),
    ...(has('sumNorms') && {
      sumNorms: requireType(`${name} sumNorms`, config.sumNorms ?? false, 'boolean'),
      embedDim: requireInteger(`${name} embedDim`, config.embedDim ?? config.channels, 1),
    }),
    ...(has('qkNorm') && {
      qkNorm: requireType(`${name} qkNorm`, config.qkNorm ?? traits.qkNormKey?.[1], 'boolean'),
    }),
    ...(has('residualDropout') && {
      residualDropout: requireFinite(`${name} residualDropout`, residualDropout, 0, 1),
    }),
  };
}

function readRopeLayers(
  { name, rope }: RotaryTraits,
  { ropeLayers, layers }: RotaryConfig,
): readonly boolean[] {
  const list = requireLayers(name, ropeLayers, layers);
  if (rope?.off !== 'unnamed' || new Set(list).size <= 1) return list;
  throw valueError(`${name} ropeLayers`, 'the same for all layers', list);
}

/** Returns the window of each layer. */
export function readWindows({
  window = null,
  layers,
}: Pick<RotaryConfig, 'window' | 'layers'>): readonly Window[] {
  return Array.isArray(window) ? window : Array.from({ length: layers }, () => window as Window);
}

/** Returns whether each layer rotates queries and keys. */
function readRotations({ rope, positions }: RotaryTraits, sizes: RotarySizes): readonly boolean[] {
  const windows = readWindows(sizes);
  if (positions || rope?.off === 'all') return windows.map(() => false);
  const isMixed = windows.some((window) => window !== null);
  if (rope?.off === 'unwindowed' || (rope?.off === 'unwindowedIfMixed' && isMixed)) {
    return windows.map((window) => window !== null);
  }
  return sizes.ropeLayers ?? windows.map(() => true);
}

/** Combines the sizes with the properties of the family. */
export function toBody(declared: RotaryTraits, sizes: RotarySizes): BodySizes {
  const traits = sizes.qkNorm === false ? ({ ...declared, qkNorm: 'none' } as const) : declared;
  const { biases, parallel = null, norm = {} } = traits;
  const has = (whether: OptionSwitch): boolean =>
    typeof whether === 'string' ? (sizes[whether] ?? false) : whether;
  const { maxSeq, headDim, partialRotaryFactor, residualDropout = 0, scales: _, ...rest } = sizes;
  const isParallel = parallel !== null && (parallel.key === null || sizes.parallel === true);
  const { attentionChunk = null } = sizes;
  // A window of at least the longest sequence hides nothing.
  const windows = readWindows(sizes).map((window) =>
    window !== null && window >= maxSeq ? null : window,
  );
  const windowTheta = sizes.windowRopeTheta ?? null;
  return {
    ...rest,
    traits,
    maxSeq,
    headDim,
    residualDropout,
    windows,
    attentionChunk: attentionChunk !== null && attentionChunk < maxSeq ? attentionChunk : null,
    windowTheta,
    isParallel,
    qkvBias: has(biases.qkv),
    outBias: has(biases.out),
    mlpBias: has(biases.mlp),
    moe: sizes.moe ?? null,
    rotaryDim: sizes.latent?.rotaryDim ?? computeRotaryDim(headDim, partialRotaryFactor),
    isFull: readWindows(sizes).map((window) => window === null),
    rotates: readRotations(traits, sizes),
    ownAngles: readWindows(sizes).map((window) => window !== null && windowTheta !== null),
    slopes: traits.positions === 'alibi' ? new AlibiSlopes(sizes.heads) : null,
    norms: isParallel ? parallel.block : (norm.block ?? PRE_NORMS),
    factors: computeFactors(traits, sizes),
  };
}
