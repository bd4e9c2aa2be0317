// Sizes of state space layers (Mamba-2): options, and keys of config.json.
import type { JsonObject, JsonValue } from '../../../types/json.js';
import type { RecurrentSizes } from '../../nn/recurrent-cache.js';
import { valueError } from '../../runtime/input-errors.js';
import { namesOf, readOptions } from '../../runtime/options.js';
import { requireFinite, requireInteger } from '../../runtime/require-number.js';
import { requireType } from '../../runtime/require-type.js';
import { entriesOf } from '../../runtime/typed-keys.js';
import type { ModelConfig } from '../model-config.js';
import type { MambaTraits, RotaryTraits } from './traits.js';

/** State space layers, which have a recurrent state. */
export interface MambaConfig {
  /** Heads (mamba_n_heads). */
  heads: number;
  /** Width of a head's values (mamba_d_head). */
  headDim: number;
  /** Groups of heads with one B and C (mamba_n_groups). Default: 1. */
  groups?: number;
  /** Width of B and C (mamba_d_state). */
  stateDim: number;
  /** Weights of a channel of the short convolution, 2 to 8 (mamba_d_conv). Default: 4. */
  taps?: number;
  /** Whether the convolution has a bias (mamba_conv_bias). Default: true. */
  convBias?: boolean;
  /** Whether both projections have a bias (mamba_proj_bias). Default: false. */
  bias?: boolean;
  /**
   * The RMS norm of the results, in families that choose it: "gated", of their product with the
   * gates; "plain", of the results alone (mamba_norm_before_gate); null: none (mamba_rms_norm).
   * Default: "gated".
   */
  norm?: 'gated' | 'plain' | null;
  /** Bounds of the time steps (time_step_limit); null: no upper bound. Default: [0, null]. */
  stepLimit?: readonly [least: number, most: number | null];
  /** Whether each layer is one; the others have attention (layer_types). */
  layers: readonly boolean[];
}

/** A complete MambaConfig. */
export type MambaSizes = Required<MambaConfig>;

const COUNTS = ['heads', 'headDim', 'groups', 'stateDim', 'taps'] as const;

/** Returns the complete `given`, or null if no layer has a state. Throws DS_ARGUMENT. */
export function readMamba(
  { name: model, mamba: traits }: RotaryTraits,
  given: MambaConfig | null | undefined,
  layers: number,
): MambaSizes | null {
  const op = `${model} mamba`;
  if (given == null) return null;
  const read = readOptions(op, given, namesOf.MambaConfig);
  const { groups = 1, taps = 4, convBias = true, bias = false } = read;
  const { norm = 'gated', stepLimit = [0, null] } = read;
  const sizes = { ...read, groups, taps, convBias, bias, norm, stepLimit };
  for (const name of COUNTS) requireInteger(`${op} ${name}`, sizes[name], 1);
  if (sizes.heads % groups !== 0) {
    throw valueError(`${op} heads`, `a multiple of ${groups} groups`, sizes.heads);
  }
  if (taps < 2 || taps > 8) throw valueError(`${op} taps`, '2 to 8', taps);
  requireType(`${op} convBias`, convBias, 'boolean');
  requireType(`${op} bias`, bias, 'boolean');
  const norms = traits?.choosesNorm ? ['gated', 'plain', null] : ['gated'];
  if (!norms.includes(norm)) throw valueError(`${op} norm`, norms.map(String).join(' or '), norm);
  const [least, most] = stepLimit;
  requireFinite(`${op} stepLimit`, least, 0);
  if (most !== null) requireFinite(`${op} stepLimit`, most, least);
  const { layers: list } = read;
  const isFlag = (value: unknown): boolean => typeof value === 'boolean';
  if (!Array.isArray(list) || list.length !== layers || !list.every(isFlag)) {
    throw valueError(`${op} layers`, `true or false for each of ${layers} layers`, list);
  }
  if (traits?.besideAttention && list.includes(false)) {
    throw valueError(`${op} layers`, `true for each of ${layers} layers`, list);
  }
  return list.includes(true) ? { ...sizes, layers: [...list] } : null;
}

/** Keys of sizes; families declare other names and defaults. */
const KEYS = {
  heads: 'mamba_n_heads',
  headDim: 'mamba_d_head',
  groups: 'mamba_n_groups',
  stateDim: 'mamba_d_state',
  taps: 'mamba_d_conv',
  convBias: 'mamba_conv_bias',
  bias: 'mamba_proj_bias',
} as const;
const EXPAND = 'mamba_expand';
const LIMIT = 'time_step_limit';

/** Names of layers in layer_types; the first of each is written. */
const [STATE, FULL] = [
  ['mamba', 'linear_attention'],
  ['attention', 'full_attention'],
];

/** Reads the keys of a config.json; null if no layer has a state. Throws DS_CHECKPOINT. */
export function parseMamba(
  traits: MambaTraits,
  config: ModelConfig,
  { layers, channels }: { layers: number; channels: number },
): MambaConfig | null {
  const list = parseLayers(traits, config, layers);
  if (!list.includes(true)) return null;
  const heads = config.size(KEYS.heads, 128);
  const groups = config.size(KEYS.groups, 1);
  if (heads % groups !== 0) throw config.refusalError(KEYS.heads, `a multiple of ${groups}`, heads);
  const taps = config.size(KEYS.taps, 4);
  if (taps < 2 || taps > 8) throw config.refusalError(KEYS.taps, '2 to 8', taps);
  const headDim = parseHeadDim(traits, config, { heads, channels });
  const bias = config.flag(KEYS.bias, false);
  if (traits.outBias) config.requireOneOf(traits.outBias, [bias]);
  return {
    heads,
    headDim,
    groups,
    stateDim: config.size(KEYS.stateDim, 256),
    taps,
    convBias: config.flag(KEYS.convBias, true),
    bias,
    ...(traits.choosesNorm && { norm: parseNorm(config) }),
    stepLimit: parseLimit(traits, config),
    layers: list,
  };
}

function parseHeadDim(
  { width, anyWidth }: MambaTraits,
  config: ModelConfig,
  { heads, channels }: { heads: number; channels: number },
): number {
  // An absent key is the default of transformers; null is mamba_expand times hidden_size.
  const isGiven = width && !(config.has(width[0]) && config.get(width[0]) === null);
  const inner = isGiven ? config.size(...width) : config.size(EXPAND, 2) * channels;
  const isAuto = config.get(KEYS.headDim, 'auto') === 'auto';
  const headDim = isAuto ? inner / heads : config.size(KEYS.headDim);
  const isBound = isGiven || (config.has(EXPAND) && !anyWidth);
  if (Number.isInteger(headDim) && (!isBound || headDim === inner / heads)) return headDim;
  const whole = isGiven ? width[0] : `${EXPAND} * hidden_size`;
  throw config.refusalError(KEYS.headDim, `${whole} / ${heads}`, headDim);
}

const [NORM, NORM_FIRST] = ['mamba_rms_norm', 'mamba_norm_before_gate'];

function parseNorm(config: ModelConfig): 'gated' | 'plain' | null {
  const isFirst = config.flag(NORM_FIRST, true);
  if (!config.flag(NORM, false)) return null;
  return isFirst ? 'plain' : 'gated';
}

function parseLayers({ layers: kind }: MambaTraits, config: ModelConfig, layers: number) {
  const all = Array.from({ length: layers }, () => true);
  if (kind === 'all') return all;
  if (kind === 'attn_layer_indices') {
    const full = config.get(kind, []);
    const isLayer = (item: JsonValue): boolean => Number.isInteger(item) && Number(item) >= 0;
    if (!Array.isArray(full) || !full.every(isLayer)) {
      throw config.refusalError(kind, 'a list of numbers of layers', full);
    }
    return all.map((_, layer) => !full.includes(layer));
  }
  const types = config.get(kind);
  if (types === null && kind === 'layer_types') return all;
  const feeds = kind === BLOCKS ? [FEED, EXPERTS] : [];
  const known = [...STATE, ...FULL, ...feeds];
  const isKnown = (type: JsonValue): boolean => known.includes(String(type));
  if (!Array.isArray(types) || types.length !== layers || !types.every(isKnown)) {
    const names = [STATE[0], FULL[0], ...feeds].map((name) => `"${name}"`);
    throw config.refusalError(kind, `${layers} of ${names.join(' or ')}`, types);
  }
  return types.map((type) => STATE.includes(String(type)));
}

const BLOCKS = 'layers_block_type';
const FEED = 'mlp';
const EXPERTS = 'moe';
/** The letters of older lists of blocks. */
const LETTERS: Readonly<Record<string, string>> = {
  M: 'mamba',
  '*': 'attention',
  '-': FEED,
  E: EXPERTS,
};

/** Returns a view of the file with a list of blocks, which older files have as letters. */
export function withBlockTypes({ mamba }: RotaryTraits, config: ModelConfig): ModelConfig {
  if (mamba?.layers !== BLOCKS) return config;
  const pattern = config.get('hybrid_override_pattern');
  const letters = typeof pattern === 'string' ? [...pattern] : pattern;
  const named = Array.isArray(letters)
    ? letters.map((letter) => LETTERS[String(letter)] ?? letter)
    : null;
  const types = config.get(BLOCKS) ?? named;
  if (!Array.isArray(types)) return config;
  return config.withContent({ [BLOCKS]: types, num_hidden_layers: types.length });
}

/** Reads which blocks have a feed-forward block or experts alone. */
export function parseFeedLayers(
  { oneBranch }: RotaryTraits,
  config: ModelConfig,
  layers: number,
): { feedLayers?: boolean[] } {
  if (!oneBranch) return {};
  const types = config.get(BLOCKS);
  if (!Array.isArray(types)) return { feedLayers: Array.from({ length: layers }, () => false) };
  return { feedLayers: types.map((type) => type === FEED || type === EXPERTS) };
}

/** transformers 5 writes Infinity as an object; see replaceInfinity() for the word of Python. */
function parseLimit({ least }: MambaTraits, config: ModelConfig): [number, number | null] {
  if (least) return [config.positive(...least), null];
  const limit = config.get(LIMIT, [0, 'Infinity']);
  const isPair = Array.isArray(limit) && limit.length === 2;
  const [from, to] = isPair ? limit.map(toNumber) : [];
  if (from !== undefined && to !== undefined && from >= 0 && from <= to) {
    return [from, to === Number.POSITIVE_INFINITY ? null : to];
  }
  throw config.refusalError(LIMIT, 'two numbers of 0 or more', limit);
}

function toNumber(value: JsonValue): number {
  const isTagged = typeof value === 'object' && value !== null && '__float__' in value;
  const number = isTagged ? value.__float__ : value;
  if (number === 'Infinity' || number === 'inf') return Number.POSITIVE_INFINITY;
  return typeof number === 'number' ? number : Number.NaN;
}

/** The keys of a config.json. */
export function describeMamba(
  traits: MambaTraits,
  mamba: MambaSizes | null,
  {
    layers,
    channels,
    feedLayers,
    moe,
  }: {
    layers: number;
    channels: number;
    feedLayers?: readonly boolean[];
    moe?: { denseLayers: readonly number[] };
  },
): JsonObject {
  const list = mamba?.layers ?? Array.from({ length: layers }, () => false);
  const indices = list.flatMap((isState, layer) => (isState ? [] : [layer]));
  const feedAt = (layer: number): string =>
    moe && !moe.denseLayers.includes(layer) ? EXPERTS : FEED;
  const blocks = list.map((isState, layer) =>
    feedLayers?.[layer] ? feedAt(layer) : ((isState ? STATE : FULL)[0] as string),
  );
  const kinds: Readonly<Record<string, JsonObject>> = {
    [BLOCKS]: { [BLOCKS]: blocks },
    all: {},
    attn_layer_indices: { attn_layer_indices: indices },
    layer_types: { layer_types: blocks },
  };
  const { [traits.layers]: types = {} } = kinds;
  if (!mamba) return types;
  const inner = mamba.heads * mamba.headDim;
  const [least, most] = mamba.stepLimit;
  return {
    ...types,
    ...Object.fromEntries(entriesOf(KEYS).map(([name, key]) => [key, mamba[name]])),
    ...(traits.width
      ? { [traits.width[0]]: inner }
      : !traits.anyWidth && { [EXPAND]: inner / channels }),
    ...(traits.outBias && { [traits.outBias]: mamba.bias }),
    ...(traits.choosesNorm && {
      [NORM]: mamba.norm !== null,
      [NORM_FIRST]: mamba.norm === 'plain',
    }),
    ...(traits.least
      ? { [traits.least[0]]: least }
      : // An absent key is [0, Infinity], which JSON lacks.
        (least > 0 || most !== null) && { [LIMIT]: [least, most ?? { __float__: 'Infinity' }] }),
  };
}

/** Channels of the convolution: values, B and C. */
export const convChannels = ({ heads, headDim, groups, stateDim }: MambaSizes): number =>
  heads * headDim + 2 * groups * stateDim;

/** The sizes of the states of these layers. */
export const spaceSizes = (traits: RotaryTraits, mamba: MambaSizes): RecurrentSizes => ({
  ...(traits.mamba?.besideAttention && { besideAttention: true }),
  layers: mamba.layers,
  channels: convChannels(mamba),
  taps: mamba.taps,
  heads: mamba.heads,
  keyDim: mamba.stateDim,
  valueDim: mamba.headDim,
});

interface FeedLayersConfig {
  feedLayers?: readonly boolean[];
  mamba?: MambaConfig | null;
  moe?: { denseLayers?: readonly number[] } | null;
  layers: number;
}

/**
 * Returns whether each layer is a feed-forward block alone. Throws DS_ARGUMENT if such a layer also
 * has a state space layer, or if another layer has experts.
 */
export function readFeedLayers(
  name: string,
  { feedLayers, mamba, moe, layers }: FeedLayersConfig,
): readonly boolean[] {
  const list = feedLayers ?? Array.from({ length: layers }, () => false);
  const isFlag = (value: unknown): boolean => typeof value === 'boolean';
  const { denseLayers = [] } = moe ?? {};
  const isBoth = (feeds: boolean, layer: number): boolean =>
    feeds ? !!mamba?.layers[layer] : moe != null && !denseLayers.includes(layer);
  if (Array.isArray(list) && list.length === layers && list.every(isFlag) && !list.some(isBoth))
    return [...list];
  const expected = `true or false for each of ${layers} layers, true for experts and false for mamba`;
  throw valueError(`${name} feedLayers`, expected, feedLayers);
}
