// The caches of a language model, for attention and for recurrent layers.
import { KeyValueCache, type SequenceCache } from '../nn/attention.js';
import { RecurrentCache, type RecurrentSizes } from '../nn/recurrent-cache.js';
import type { Device } from '../runtime/device.js';
import type { DType } from '../runtime/dtype.js';

/** Shape of a token's keys and values in the cache of one layer, and the recurrent layers. */
export interface CacheShape {
  layers: number;
  kvHeads: number;
  headDim: number;
  dtype: DType;
  device: Device;
  recurrent: RecurrentSizes | null;
  /** Whether it keeps latents: one of two heads' width for each token. Default false. */
  latent?: boolean;
}

/** New caches with capacity for `capacity` tokens in each of `batch` rows. */
export function newCaches(
  { layers, kvHeads, headDim, dtype, device, recurrent }: CacheShape,
  batch: number,
  capacity: number,
): SequenceCache[] {
  const shape = [batch, kvHeads, capacity, headDim] as const;
  return Array.from({ length: layers }, (_, i) =>
    recurrent?.layers[i]
      ? new RecurrentCache(batch, recurrent, { dtype, device })
      : new KeyValueCache(shape, dtype, device),
  );
}
