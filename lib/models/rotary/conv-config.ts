// Sizes of gated short convolutions: options, and keys of config.json.
import type { JsonObject, JsonValue } from '../../../types/json.js';
import type { RecurrentSizes } from '../../nn/recurrent-cache.js';
import { argumentError, valueError } from '../../runtime/input-errors.js';
import { namesOf, readOptions } from '../../runtime/options.js';
import { requireInteger } from '../../runtime/require-number.js';
import type { ModelConfig } from '../model-config.js';

/** Layers with a gated short convolution instead of attention. */
export interface ConvSizes {
  /** Weights of a channel of the convolution, 2 to 8 (conv_L_cache). */
  taps: number;
  /** Whether each layer is one; the others have attention (layer_types). */
  layers: readonly boolean[];
}

/**
 * Returns the complete `given`; `model` is the name in errors. Throws DS_ARGUMENT for a missing or
 * invalid option.
 */
export function readConv(model: string, given: ConvSizes | undefined, layers: number): ConvSizes {
  const op = `${model} conv`;
  if (given === undefined) throw argumentError(op, '{ taps, layers }', 'undefined');
  const { taps, layers: list } = readOptions(op, given, namesOf.ConvSizes);
  requireInteger(`${op} taps`, taps, 1);
  if (taps < 2 || taps > 8) throw valueError(`${op} taps`, '2 to 8', taps);
  const isFlag = (value: unknown): boolean => typeof value === 'boolean';
  if (!Array.isArray(list) || list.length !== layers || !list.every(isFlag)) {
    throw valueError(`${op} layers`, `true or false for each of ${layers} layers`, list);
  }
  return { taps, layers: [...list] };
}

const [FULL, CONV] = ['full_attention', 'conv'];

/** Reads the keys of a config.json. Throws DS_CHECKPOINT for invalid values. */
export function parseConv(config: ModelConfig, layers: number): ConvSizes {
  config.requireOneOf('conv_bias', [false]);
  const taps = config.size('conv_L_cache', 3);
  if (taps < 2 || taps > 8) throw config.refusalError('conv_L_cache', '2 to 8', taps);
  const types = config.get('layer_types') ?? typesBy(config, layers);
  const isKnown = (type: JsonValue): boolean => type === FULL || type === CONV;
  if (!Array.isArray(types) || types.length !== layers || !types.every(isKnown)) {
    throw config.refusalError('layer_types', `${layers} of "${FULL}" or "${CONV}"`, types);
  }
  return { taps, layers: types.map((type) => type === CONV) };
}

/** Older files list the layers with attention; without a list, all have it. */
function typesBy(config: ModelConfig, layers: number): string[] {
  const full = config.get('full_attn_idxs');
  const isLayer = (value: JsonValue): boolean => Number.isInteger(value) && Number(value) >= 0;
  if (full !== null && !(Array.isArray(full) && full.every(isLayer))) {
    throw config.refusalError('full_attn_idxs', 'a list of numbers of layers', full);
  }
  const has = (layer: number): boolean => full === null || full.includes(layer);
  return Array.from({ length: layers }, (_, layer) => (has(layer) ? FULL : CONV) as string);
}

/**
 * The width of feed-forward blocks. block_auto_adjust_ff_dim makes it two thirds, times a factor,
 * up to a multiple.
 */
export function parseFeedWidth(config: ModelConfig): number {
  const given = config.size(config.has('block_ff_dim') ? 'block_ff_dim' : 'intermediate_size');
  if (!config.flag('block_auto_adjust_ff_dim', false)) return given;
  const less = Math.floor((2 * given) / 3);
  if (config.get('block_ffn_dim_multiplier', 1) === null) return less;
  const multiple = config.size('block_multiple_of', 256);
  const wide = Math.floor(config.positive('block_ffn_dim_multiplier', 1) * less);
  return multiple * Math.ceil(wide / multiple);
}

/** The keys of a config.json. */
export const describeConv = ({ taps, layers }: ConvSizes): JsonObject => ({
  conv_L_cache: taps,
  conv_bias: false,
  layer_types: layers.map((isConv) => (isConv ? CONV : FULL) as string),
});

/** The sizes of the states of these layers; see ShortConvolution. */
export const convStatesOf = ({ layers, taps }: ConvSizes, channels: number): RecurrentSizes => {
  return { layers, channels: 2 * channels, taps, heads: 0, keyDim: 0, valueDim: 0 };
};
