// Sparse pruning: single weights become 0.
import { abs } from '../tensor/index.js';
import type { CompressedLinear } from './compressed-layers.js';
import type { CompressionSection, Technique } from './technique.js';
import { fixedMask, maskOf, scoresFor } from './top-mask.js';

type Section = CompressionSection['sparse_pruning'];

/**
 * Selects the remaining elements of `layer`: now, by magnitude ("l1"), or in each step by trained
 * scores ("topk"). Source: DeepSpeed's enable_sparse_pruning.
 */
export function sparsePruning(
  layer: CompressedLinear,
  { method, schedule_offset: offset }: Section['shared_parameters'],
  { dense_ratio: ratio }: Section['different_groups'][string]['params'],
): Technique {
  const { weight: own } = layer;
  if (method === 'l1') layer.sparse_pruning_mask = fixedMask(own, abs, ratio);
  else layer.sparse_mask_scores = scoresFor(own, own.shape);
  return {
    kind: 'sparse_pruning',
    offset,
    compress: ({ weight, bias }) => {
      const { sparse_pruning_mask: fixed, sparse_mask_scores: scores } = layer;
      return { weight: weight.mul(maskOf({ fixed, scores }, ratio, weight)), bias };
    },
  };
}
