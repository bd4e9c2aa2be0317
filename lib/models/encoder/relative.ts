// Attention with scores by the distance of tokens: DeBERTa's disentangled attention.

import type { Linear } from '../../nn/linear.js';
import { leading } from '../../runtime/required.js';
import {
  dropout as dropped,
  matmul,
  noGrad,
  softmax,
  type Tensor,
  where,
} from '../../tensor/index.js';

/** Relative positions of one forward. */
export interface Distances {
  /** A vector for each bucket, [2 buckets, C]. */
  readonly vectors: Tensor;
  /** The bucket of query t and key s, [T, T] i32. */
  readonly index: Tensor;
  /** Dropout of the vectors in training. */
  readonly dropout: number;
}

/** Finite and far below every score. */
const LOWEST = -1e30;
const LOWEST_F16 = -65504;

const { fround } = Math;

/**
 * The bucket of a distance: distances up to half of the buckets have their own, larger ones share
 * buckets by their logarithm. In f32 as in transformers' make_log_bucket_position().
 */
function bucketOf(distance: number, buckets: number, most: number): number {
  const mid = Math.floor(buckets / 2);
  const far = Math.abs(distance);
  if (far <= mid) return distance;
  const scale = fround(Math.log(fround((most - 1) / mid)));
  const share = fround(fround(Math.log(fround(far / mid))) / scale);
  return Math.sign(distance) * (Math.ceil(fround(share * (mid - 1))) + mid);
}

/** The row of the table for each query and key, [T, T]. */
export function distanceRows(length: number, buckets: number, most: number): Int32Array {
  const rows = new Int32Array(length * length);
  const ofDistance = Array.from({ length: 2 * length - 1 }, (_, i) => {
    const bucket = bucketOf(i - length + 1, buckets, most);
    return Math.min(Math.max(bucket + buckets, 0), 2 * buckets - 1);
  });
  for (let t = 0; t < length; ++t) {
    for (let s = 0; s < length; ++s) {
      rows[t * length + s] = ofDistance[t - s + length - 1] as number;
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
 * Attention [B, H, T, D] of q, k and v [B, T, H, D] with scores (q k + q Kr[s] + k Qr[s]) / sqrt(3
 * D) for bucket s: Kr and Qr are the projections of the buckets' vectors. Source: He et al. 2020.
 */
export function relativeAttention(
  [q, k, v]: readonly [Tensor, Tensor, Tensor],
  projections: readonly Linear[],
  distances: Distances,
  { documents, dropout }: RelativeOptions,
): Tensor {
  const [queries, keys] = leading(projections, 2);
  const [B, T, H, D] = leading(q.shape, 4);
  const vectors =
    distances.dropout > 0 ? dropped(distances.vectors, distances.dropout) : distances.vectors;
  const ofBuckets = (layer: Linear): Tensor =>
    layer
      .call(vectors)
      .reshape([vectors.size(0), H, D])
      .transpose(0, 1)
      .unsqueeze(0);
  const [heads, others] = [q.transpose(1, 2), k.transpose(1, 2)];
  const index = distances.index.reshape([1, 1, T, T]).expand([B, H, T, T]);
  const byKey = matmul(heads, ofBuckets(keys).transpose(2, 3)).gather(3, index);
  // Of key s and query t the table's row is that of t - s: gathered by key, then transposed.
  const turnedIndex = noGrad(() => distances.index.transpose(0, 1).contiguous());
  const byQuery = matmul(others, ofBuckets(queries).transpose(2, 3))
    .gather(3, turnedIndex.reshape([1, 1, T, T]).expand([B, H, T, T]))
    .transpose(2, 3);
  const scores = matmul(heads, others.transpose(2, 3)).add(byKey).add(byQuery);
  const scaled = scores.mul(1 / Math.sqrt(3 * D));
  const weights = softmax(documents ? hiding(scaled, documents) : scaled);
  return matmul(dropout > 0 ? dropped(weights, dropout) : weights, v.transpose(1, 2));
}

/**
 * Scores of padding are the lowest: a query of padding sees all keys alike, as in transformers,
 * where such outputs are part of the loss of answers.
 */
function hiding(scores: Tensor, documents: NonNullable<RelativeOptions['documents']>): Tensor {
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
