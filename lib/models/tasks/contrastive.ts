// Losses of embeddings, by the formulas of sentence-transformers.
import { refused } from '../../runtime/refused.js';
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
import { unitRows } from './pooling.js';

function requireAlike(op: string, first: Tensor, ...others: readonly Tensor[]): void {
  const odd = others.find(({ shape }) => shape.join() !== first.shape.join());
  if (first.ndim === 2 && !odd) return;
  throw refused(op, 'embeddings [B, C] of one shape', describe(odd ?? first));
}

/** Cosines of the rows of two tensors [B, C], [B]. */
export function cosineSimilarity(a: Tensor, b: Tensor): Tensor {
  requireAlike('cosineSimilarity', a, b);
  return scope(() => unitRows(a).mul(unitRows(b)).sum(1));
}

/**
 * The loss of anchors and positives [B, C] f32: the positives of other rows are negatives.
 * Cross-entropy of scale * cosine. Source: Henderson et al. 2017; MultipleNegativesRankingLoss.
 */
export function multipleNegativesRanking(
  anchors: Tensor,
  positives: Tensor,
  { scale = 20 }: { scale?: number } = {},
): Tensor {
  requireAlike('multipleNegativesRanking', anchors, positives);
  requireFinite('multipleNegativesRanking scale', scale, 0);
  return scope(() => {
    const scores = matmul(unitRows(anchors), unitRows(positives).transpose(0, 1)).mul(scale);
    const own = noGrad(() => arange(anchors.size(0), { dtype: 'i32', device: anchors.device }));
    return crossEntropy(scores, own);
  });
}

/** Mean squared error of the cosine and `labels` [B]. Source: CosineSimilarityLoss. */
export function cosineLoss(a: Tensor, b: Tensor, labels: Tensor): Tensor {
  requireAlike('cosineLoss', a, b);
  return scope(() => mse(cosineSimilarity(a, b), labels));
}

/**
 * Mean of max(0, |anchor - positive| - |anchor - negative| + margin), of rows [B, C]. Source:
 * Reimers & Gurevych 2019, TripletLoss.
 */
export function tripletLoss(
  anchors: Tensor,
  positives: Tensor,
  negatives: Tensor,
  { margin = 5 }: { margin?: number } = {},
): Tensor {
  requireAlike('tripletLoss', anchors, positives, negatives);
  requireFinite('tripletLoss margin', margin);
  // PyTorch's pairwise_distance() adds 1e-6 to each difference.
  const distance = (b: Tensor): Tensor => anchors.sub(b).add(1e-6).square().sum(1).sqrt();
  return scope(() => relu(distance(positives).sub(distance(negatives)).add(margin)).mean());
}
