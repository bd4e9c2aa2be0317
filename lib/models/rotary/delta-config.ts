// Sizes of gated delta net layers: options, and keys of config.json.
import type { JsonObject, JsonValue } from '../../../types/json.js';
import type { RecurrentSizes } from '../../nn/recurrent-cache.js';
import { argumentError, valueError } from '../../runtime/input-errors.js';
import { namesOf, readOptions } from '../../runtime/options.js';
import { requireInteger } from '../../runtime/require-number.js';
import { entriesOf } from '../../runtime/typed-keys.js';
import type { ModelConfig } from '../model-config.js';

/** Gated delta net layers, which have a recurrent state instead of attention. */
export interface DeltaSizes {
  /** Heads of queries and keys (linear_num_key_heads). */
  keyHeads: number;
  /** Heads of values, a multiple of them (linear_num_value_heads). */
  heads: number;
  /** Width of a head of queries and keys (linear_key_head_dim). */
  keyDim: number;
  /** Width of a head of values (linear_value_head_dim). */
  valueDim: number;
  /** Weights of a channel of the short convolution, 2 to 8 (linear_conv_kernel_dim). */
  taps: number;
  /** Whether each layer is one; the others have attention (layer_types). */
  layers: readonly boolean[];
}

/**
 * Returns the complete `delta`; `model` is the name in errors. Throws DS_ARGUMENT for a missing or
 * invalid option.
 */
export function readDelta(
  model: string,
  delta: DeltaSizes | undefined,
  layers: number,
): DeltaSizes {
  const op = `${model} delta`;
  if (delta === undefined) throw argumentError(op, 'the sizes of gated delta nets', 'undefined');
  const read = readOptions(op, delta, namesOf.DeltaSizes);
  const { keyHeads, heads, taps, layers: list } = read;
  for (const name of ['keyHeads', 'heads', 'keyDim', 'valueDim', 'taps'] as const) {
    requireInteger(`${op} ${name}`, read[name], 1);
  }
  if (heads % keyHeads !== 0) {
    throw valueError(`${op} heads`, `a multiple of ${keyHeads} keyHeads`, heads);
  }
  if (taps < 2 || taps > 8) throw valueError(`${op} taps`, '2 to 8', taps);
  const isFlag = (value: unknown): boolean => typeof value === 'boolean';
  const isList = Array.isArray(list) && list.length === layers && list.every(isFlag);
  if (!isList) {
    throw valueError(`${op} layers`, `true or false for each of ${layers} layers`, list);
  }
  return { ...read, layers: [...list] };
}

/** Keys and transformers' defaults. */
const KEYS = {
  keyHeads: ['linear_num_key_heads', 16],
  heads: ['linear_num_value_heads', 32],
  keyDim: ['linear_key_head_dim', 128],
  valueDim: ['linear_value_head_dim', 128],
  taps: ['linear_conv_kernel_dim', 4],
} as const;

const [FULL, LINEAR] = ['full_attention', 'linear_attention'];

/** Reads the keys of a config.json. Throws DS_CHECKPOINT for invalid values. */
export function parseDelta(config: ModelConfig, layers: number): DeltaSizes {
  const size = (name: keyof typeof KEYS): number => config.size(KEYS[name][0], KEYS[name][1]);
  const [keyHeads, heads, taps] = [size('keyHeads'), size('heads'), size('taps')];
  if (heads % keyHeads !== 0) {
    throw config.refusalError(KEYS.heads[0], `a multiple of ${keyHeads}`, heads);
  }
  if (taps < 2 || taps > 8) throw config.refusalError(KEYS.taps[0], '2 to 8', taps);
  const every = config.size('full_attention_interval', 4);
  const layersByInterval = (_: unknown, i: number) => ((i + 1) % every === 0 ? FULL : LINEAR);
  const types = config.get('layer_types') ?? Array.from({ length: layers }, layersByInterval);
  const isKnown = (type: JsonValue): boolean => type === FULL || type === LINEAR;
  if (!Array.isArray(types) || types.length !== layers || !types.every(isKnown)) {
    throw config.refusalError('layer_types', `${layers} of "${FULL}" or "${LINEAR}"`, types);
  }
  return {
    keyHeads,
    heads,
    keyDim: size('keyDim'),
    valueDim: size('valueDim'),
    taps,
    layers: types.map((type) => type === LINEAR),
  };
}

/** The keys of a config.json. */
export function describeDelta(sizes: DeltaSizes): JsonObject {
  const entries = entriesOf<keyof typeof KEYS, readonly [string, number]>(KEYS);
  return {
    ...Object.fromEntries(entries.map(([name, [key]]) => [key, sizes[name]])),
    layer_types: sizes.layers.map((isDelta) => (isDelta ? LINEAR : FULL)),
  };
}

/** The sizes of the states of these layers. */
export function stateSizes({
  layers,
  taps,
  heads,
  keyHeads,
  keyDim,
  valueDim,
}: DeltaSizes): RecurrentSizes {
  const channels = 2 * keyHeads * keyDim + heads * valueDim;
  return { layers, channels, taps, heads, keyDim, valueDim };
}
