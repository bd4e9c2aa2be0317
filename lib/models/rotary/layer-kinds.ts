// Layers of several kinds in one model: heads of layers without a window, keys and values that
// layers share, and further embeddings for each block. Source: Gemma 4.
import type { JsonObject, JsonValue } from '../../../types/json.js';
import { required } from '../../runtime/required.js';
import type { LayerShape } from '../caches.js';
import type { ModelConfig } from '../model-config.js';
import { describeAltUp, parseAltUp } from './alt-up-config.js';
import type { BodySizes, RotaryConfig, RotarySizes } from './config.js';
import type { FullHeads } from './kind-options.js';
import type { RotaryTraits } from './traits.js';

/** Returns the body with the sizes of one layer. */
export function bodyAt(body: BodySizes, layer: number): BodySizes {
  const { full, sharedKeys, isFull, hidden } = body;
  const isDoubled = sharedKeys?.doubled === true && findSource(body, layer) !== null;
  const fullHeads = isFull[layer] && full ? full : null;
  if (!fullHeads && !isDoubled) return body;
  return {
    ...body,
    ...(fullHeads && {
      headDim: fullHeads.headDim,
      rotaryDim: fullHeads.headDim,
      kvHeads: fullHeads.kvHeads,
    }),
    ...(isDoubled && { hidden: 2 * hidden }),
  };
}

/** Returns the layer with the keys and values that `layer` reads; null if it has its own. */
export function findSource(
  { sharedKeys, isFull }: Pick<BodySizes, 'sharedKeys' | 'isFull'>,
  layer: number,
): number | null {
  const first = isFull.length - (sharedKeys?.layers ?? 0);
  if (layer < first) return null;
  return isFull.slice(0, first).lastIndexOf(required(isFull[layer]));
}

/** Whether layers of this body have different caches. */
export const hasOwnSizes = ({
  full,
  sharedKeys,
}: Pick<BodySizes, 'full' | 'sharedKeys'>): boolean => full != null || sharedKeys != null;

/**
 * Returns the shape of keys and values of each layer; `keys` returns the number of key heads on
 * this rank.
 */
export function listShapes(body: BodySizes, keys: (layer: number) => number): LayerShape[] {
  return body.isFull.map((_, layer) => ({
    kvHeads: keys(layer),
    headDim: bodyAt(body, layer).headDim,
    from: findSource(body, layer),
  }));
}

/** Reads these options of a config.json. Throws DS_CHECKPOINT for invalid values. */
export function parseLayerKinds(
  { layerKinds, altUp }: RotaryTraits,
  config: ModelConfig,
  sizes: { kvHeads: number; headDim: number; vocabSize: number; isFull: readonly boolean[] },
): Pick<RotaryConfig, 'full' | 'sharedKeys' | 'layerInputDim' | 'altUp'> {
  if (!layerKinds) return {};
  const count = (key: string): number => {
    const value = config.get(key, 0);
    if (typeof value === 'number' && Number.isInteger(value) && value >= 0) return value;
    throw config.refusalError(key, 'an integer of 0 or more', value);
  };
  const [layers, width] = ['num_kv_shared_layers', 'hidden_size_per_layer_input'].map(count);
  if (Number(layers) >= sizes.isFull.length) {
    const expected = `fewer than the ${sizes.isFull.length} layers`;
    throw config.refusalError('num_kv_shared_layers', expected, Number(layers));
  }
  if (altUp) {
    return {
      ...(layers ? { sharedKeys: { layers } } : {}),
      layerInputDim: config.size('hidden_size_per_layer_input'),
      altUp: parseAltUp(config, sizes.isFull.length),
    };
  }
  if (width) config.requireOneOf('vocab_size_per_layer_input', [sizes.vocabSize]);
  const doubled = config.flag('use_double_wide_mlp', false);
  return {
    full: parseFull(config, sizes),
    ...(layers ? { sharedKeys: { layers, doubled } } : {}),
    layerInputDim: width || null,
  };
}

/**
 * Returns the width of feed-forward blocks; some files list equal widths of all layers. The usual
 * width of a block without a gate is 4 * channels.
 */
export function parseWidth(
  { altUp, feed }: RotaryTraits,
  config: ModelConfig,
  channels: number,
): number {
  const key = 'intermediate_size';
  const widths = config.get(key);
  const fallback = typeof feed === 'object' ? 4 * channels : null;
  if (!altUp || !Array.isArray(widths)) return config.size(key, fallback);
  const [width = null, ...others] = widths;
  if (others.every((other) => other === width)) {
    return config.withContent({ [key]: width }).size(key);
  }
  throw config.refusalError(key, 'the same width in all layers', widths);
}

function parseFull(
  config: ModelConfig,
  { kvHeads: usual, headDim: narrow, isFull }: Parameters<typeof parseLayerKinds>[2],
): FullHeads {
  const keysAsValues = config.flag('attention_k_eq_v', false);
  const byLayer = config.section('per_layer_config');
  if (byLayer.keys().length === 0) {
    const kvHeads = keysAsValues ? config.size('num_global_key_value_heads', usual) : usual;
    return { headDim: config.size('global_head_dim', 512), kvHeads, keysAsValues };
  }
  // transformers 5.18 writes the sizes of each layer without a window.
  const sizesByLayer = isFull.map((_, layer) => {
    const layerConfig = byLayer.section(String(layer));
    const knownKeys = ['head_dim', 'num_key_value_heads'];
    const other = layerConfig.keys().find((key) => !knownKeys.includes(key));
    if (other)
      throw layerConfig.refusalError(
        other,
        `the keys ${knownKeys.join(', ')}`,
        layerConfig.get(other),
      );
    return [
      layerConfig.size('head_dim', narrow),
      layerConfig.size('num_key_value_heads', usual),
    ] as const;
  });
  const fullSizes = sizesByLayer.filter((_, layer) => isFull[layer]);
  const [headDim, kvHeads] = fullSizes[0] ?? [narrow, usual];
  const isLike = ([width, keys]: readonly [number, number], layer: number): boolean =>
    isFull[layer] ? width === headDim && keys === kvHeads : width === narrow && keys === usual;
  if (sizesByLayer.every(isLike)) return { headDim, kvHeads, keysAsValues };
  const expected = 'the same sizes of all layers without a window, and of all others';
  throw config.refusalError('per_layer_config', expected, config.get('per_layer_config'));
}

/** Returns the keys of a config.json. */
export function describeLayerKinds({ layerKinds }: RotaryTraits, sizes: RotarySizes): JsonObject {
  if (!layerKinds) return {};
  const { full, sharedKeys, layerInputDim, vocabSize, headDim, altUp } = sizes;
  const shared = {
    num_kv_shared_layers: sharedKeys?.layers ?? 0,
    hidden_size_per_layer_input: layerInputDim ?? 0,
  };
  if (altUp) return { ...shared, ...describeAltUp(altUp) };
  const heads: Record<string, JsonValue> = {
    global_head_dim: full?.headDim ?? headDim,
    num_global_key_value_heads: full?.keysAsValues ? (full.kvHeads ?? null) : null,
    attention_k_eq_v: full?.keysAsValues ?? false,
  };
  return {
    ...heads,
    ...shared,
    use_double_wide_mlp: sharedKeys?.doubled ?? false,
    vocab_size_per_layer_input: vocabSize,
  };
}
