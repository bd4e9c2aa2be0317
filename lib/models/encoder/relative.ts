// DeBERTa's disentangled attention: scores depend on the distance between tokens.

import type { Linear } from '../../nn/linear.js';
import { leading, required } from '../../runtime/required.js';
import {
  dropout as dropped,
  matmul,
  noGrad,
  softmax,
  type Tensor,
  where,
} from '../../tensor/index.js';

/** Relative positions of one forward. */
export interface RelativeDistances {
  /** A vector for each bucket, [2 buckets, C]. */
  readonly vectors: Tensor;
  /** Bucket of the distance from query t to key s, [T, T] i32. */
  readonly index: Tensor;
  /** Dropout of the vectors in training. */
  readonly dropout: number;
}

/** Score of padding: finite, but far below all other scores. */
const LOWEST = -1e30;
const LOWEST_F16 = -65504;

const { fround } = Math;

/**
 * Returns the bucket of a distance. A distance of at most half of the buckets has its own bucket;
 * larger distances share buckets by their logarithm. Computes in f32, as
 * make_log_bucket_position() of transformers does.
 */
function distanceBucket(distance: number, buckets: number, max: number): number {
  const mid = Math.floor(buckets / 2);
  const far = Math.abs(distance);
  if (far <= mid) return distance;
  const scale = fround(Math.log(fround((max - 1) / mid)));
  const share = fround(fround(Math.log(fround(far / mid))) / scale);
  return Math.sign(distance) * (Math.ceil(fround(share * (mid - 1))) + mid);
}

/** Returns the row of the table for each query and key, [T, T]. */
export function distanceRows(length: number, buckets: number, max: number): Int32Array {
  const rows = new Int32Array(length * length);
  const ofDistance = Array.from({ length: 2 * length - 1 }, (_, i) => {
    const bucket = distanceBucket(i - length + 1, buckets, max);
    return Math.min(Math.max(bucket + buckets, 0), 2 * buckets - 1);
  });
  for (let t = 0; t < length; ++t) {
    for (let s = 0; s < length; ++s) {
      rows[t * length + s] = required(ofDistance[t - s + length - 1]);
    }
  }
  return rows;
}

/** Options of relativeAttention(). */
interface RelativeOptions {
  documents: Tensor | { readonly queries: Tensor; readonly keys: Tensor } | null;
  dropout: number;
}

/**
 * Returns attention [B, H, T, D] of q, k and v [B, T, H, D]. The score of a query and a key in
 * bucket s is (q k + q Kr[s] + k Qr[s]) / sqrt(3 D). Kr and Qr are the projections of the vectors
 * of the buckets. Source: He et al. 2020.
 */
export function relativeAttention(
  [q, k, v]: readonly [Tensor, Tensor, Tensor],
  projections: readonly Linear[],
  distances: RelativeDistances,
  { documents, dropout }: RelativeOptions,
): Tensor {
  const [queries, keys] = leading(projections, 2);
  const [B, T, H, D] = leading(q.shape, 4);
  const { vectors: shared, dropout: rate } = distances;
  // Each layer reads its own tensor, so autograd first adds the two gradients of this layer. A
  // recomputed layer adds in the same order and gets the same bits.
  const vectors = rate > 0 ? dropped(shared, rate) : shared.reshape(shared.shape);
  const gatherBuckets = (layer: Linear): Tensor =>
    layer
      .call(vectors)
      .reshape([vectors.size(0), H, D])
      .transpose(0, 1)
      .unsqueeze(0);
  const [heads, others] = [q.transpose(1, 2), k.transpose(1, 2)];
  const index = distances.index.reshape([1, 1, T, T]).expand([B, H, T, T]);
  const byKey = matmul(heads, gatherBuckets(keys).transpose(2, 3)).gather(3, index);
  // The table's row for key s and query t is that of t - s: gather by key, then transpose.
  const turnedIndex = noGrad(() => distances.index.transpose(0, 1).contiguous());
  const byQuery = matmul(others, gatherBuckets(queries).transpose(2, 3))
    .gather(3, turnedIndex.reshape([1, 1, T, T]).expand([B, H, T, T]))
    .transpose(2, 3);
  const scores = matmul(heads, others.transpose(2, 3)).add(byKey).add(byQuery);
  const scaled = scores.mul(1 / Math.sqrt(3 * D));
  const weights = softmax(documents ? hidePadding(scaled, documents) : scaled);
  return matmul(dropout > 0 ? dropped(weights, dropout) : weights, v.transpose(1, 2));
}

/**
 * Sets the scores of padding to the lowest value. As in transformers, a query at padding gives all
 * keys the same weight, and the loss of answers includes its output.
 */
function hidePadding(scores: Tensor, documents: NonNullable<RelativeOptions['documents']>): Tensor {
  const keys = 'keys' in documents ? documents.keys : documents;
  const [B, T] = leading(keys.shape, 2);
  const hidden = noGrad(() => {
    const isPadding = keys.lt(0).to('i32');
    return isPadding
      .reshape([B, 1, T, 1])
      .add(isPadding.reshape([B, 1, 1, T]))
      .gt(0);
  });
  return where(hidden, scores.dtype === 'f16' ? LOWEST_F16 : LOWEST, scores);
}
