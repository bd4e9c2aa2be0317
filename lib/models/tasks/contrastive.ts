// Losses of embeddings with the formulas of sentence-transformers.
import { argumentError } from '../../runtime/input-errors.js';
import { requireFinite } from '../../runtime/require-number.js';
import { describe } from '../../runtime/view.js';
import {
  arange,
  crossEntropy,
  matmul,
  mse,
  noGrad,
  relu,
  scope,
  type Tensor,
} from '../../tensor/index.js';
import { requireTensor } from '../../tensor/ops/shapes.js';
import { normalizeRows } from './pooling.js';

function requireSameShape(op: string, first: Tensor, ...others: readonly Tensor[]): void {
  for (const tensor of [first, ...others]) requireTensor(op, tensor);
  const odd = others.find(({ shape }) => shape.join() !== first.shape.join());
  if (first.ndim === 2 && !odd) return;
  throw argumentError(op, 'embeddings [B, C] of one shape', describe(odd ?? first));
}

/**
 * Returns the cosine of each row of `a` [B, C] and the same row of `b`, [B]. Throws DS_ARGUMENT for
 * other shapes.
 */
export function cosineSimilarity(a: Tensor, b: Tensor): Tensor {
  requireSameShape('cosineSimilarity', a, b);
  return scope(() => normalizeRows(a).mul(normalizeRows(b)).sum(1));
}

/**
 * Returns the cross-entropy of scale * cosine between anchors and positives [B, C] f32. The
 * positives of other rows are the negatives of a row. Throws DS_ARGUMENT unless `scale` is a number
 * from 0. Source: Henderson et al. 2017; MultipleNegativesRankingLoss.
 */
export function multipleNegativesRanking(
  anchors: Tensor,
  positives: Tensor,
  { scale = 20 }: { scale?: number } = {},
): Tensor {
  requireSameShape('multipleNegativesRanking', anchors, positives);
  requireFinite('multipleNegativesRanking scale', scale, 0);
  return scope(() => {
    const scores = matmul(normalizeRows(anchors), normalizeRows(positives).transpose(0, 1)).mul(
      scale,
    );
    const targets = noGrad(() => arange(anchors.size(0), { dtype: 'i32', device: anchors.device }));
    return crossEntropy(scores, targets);
  });
}

/**
 * Returns the mean squared error between the cosines of `a` and `b` and `labels` [B]. Source:
 * CosineSimilarityLoss.
 */
export function cosineLoss(a: Tensor, b: Tensor, labels: Tensor): Tensor {
  requireSameShape('cosineLoss', a, b);
  return scope(() => mse(cosineSimilarity(a, b), labels));
}

/**
 * Returns the mean of max(0, |anchor - positive| - |anchor - negative| + margin) over rows [B, C].
 * Throws DS_ARGUMENT unless `margin` is a number. Source: Reimers & Gurevych 2019, TripletLoss.
 */
export function tripletLoss(
  anchors: Tensor,
  positives: Tensor,
  negatives: Tensor,
  { margin = 5 }: { margin?: number } = {},
): Tensor {
  requireSameShape('tripletLoss', anchors, positives, negatives);
  requireFinite('tripletLoss margin', margin);
  // PyTorch's pairwise_distance() adds 1e-6 to each difference.
  const distance = (b: Tensor): Tensor => anchors.sub(b).add(1e-6).square().sum(1).sqrt();
  return scope(() => relu(distance(positives).sub(distance(negatives)).add(margin)).mean());
}
