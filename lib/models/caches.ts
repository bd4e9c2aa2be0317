// The caches of a language model, for attention and for recurrent layers.

import { DsError } from '../errors.js';
import { type CacheReach, KeyValueCache, type SequenceCache } from '../nn/attention.js';
import { HybridCache, RecurrentCache, type RecurrentSizes } from '../nn/recurrent-cache.js';
import type { Device } from '../runtime/device.js';
import type { DType } from '../runtime/dtype.js';
import { required } from '../runtime/required.js';
import type { Tensor } from '../tensor/index.js';

/** Shape of a token's keys and values in the cache of one layer. */
export interface LayerShape {
  kvHeads: number;
  headDim: number;
  /** An earlier layer with the keys and values that it reads; null: it has its own. */
  from: number | null;
}

/** Shape of a token's keys and values in the cache of one layer, and the recurrent layers. */
export interface CacheShape {
  layers: number;
  kvHeads: number;
  headDim: number;
  dtype: DType;
  device: Device;
  recurrent: RecurrentSizes | null;
  /** Whether it keeps latents: one of two heads' width for each token. Default: false. */
  latent?: boolean;
  /** The shape of each layer, if layers differ. Default: kvHeads and headDim in all layers. */
  byLayer?: readonly LayerShape[];
}

/** The shape of each layer. */
export function layerShapes({
  layers,
  kvHeads,
  headDim,
  byLayer,
}: Pick<CacheShape, 'layers' | 'kvHeads' | 'headDim' | 'byLayer'>): readonly LayerShape[] {
  return byLayer ?? Array.from({ length: layers }, () => ({ kvHeads, headDim, from: null }));
}

/** Cache of a layer that reads the keys and values of another layer. */
class ReadingCache implements SequenceCache {
  constructor(private readonly source: SequenceCache) {}

  /** Number of tokens in the source layer, which changes it. */
  get length(): number {
    return this.source.length;
  }

  set length(_: number) {}

  attend(): never {
    const [expected, got] = ['a layer with keys of its own', 'a layer that reads others'];
    throw new DsError({ code: 'DS_INTERNAL', op: 'ReadingCache', expected, got });
  }

  attendStored(q: Tensor, reach: CacheReach): Tensor {
    return required(this.source.attendStored).call(this.source, q, reach);
  }
}

/** Creates caches with capacity for `capacity` tokens in each of `batch` rows. */
export function createCaches(shape: CacheShape, batch: number, capacity: number): SequenceCache[] {
  const { dtype, device, recurrent } = shape;
  const caches: SequenceCache[] = [];
  for (const [i, { kvHeads, headDim, from }] of layerShapes(shape).entries()) {
    const keys = [batch, kvHeads, capacity, headDim] as const;
    if (recurrent?.layers[i]) {
      const like = { dtype, device };
      caches.push(
        recurrent.besideAttention
          ? new HybridCache(keys, recurrent, like)
          : new RecurrentCache(batch, recurrent, like),
      );
    } else if (from !== null) caches.push(new ReadingCache(required(caches[from])));
    else caches.push(new KeyValueCache(keys, dtype, device));
  }
  return caches;
}
