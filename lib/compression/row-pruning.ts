// Row pruning: outputs of a linear layer become 0, with their biases.
import { abs, sum, type Tensor } from '../tensor/index.js';
import type { CompressedLinear } from './compressed-layers.js';
import type { CompressionSection, Technique } from './technique.js';
import { fixedMask, maskOf, scoresFor } from './top-mask.js';

type Section = CompressionSection['row_pruning'];

/**
 * Selects the remaining outputs of `layer`: now, by the sums of their weights' magnitudes ("l1"),
 * or in each step by trained scores ("topk"). Source: DeepSpeed's enable_row_pruning.
 */
export function rowPruning(
  layer: CompressedLinear,
  { method, schedule_offset: offset }: Section['shared_parameters'],
  { dense_ratio: ratio }: Section['different_groups'][string]['params'],
): Technique {
  const { weight: own } = layer;
  const sizes = (values: Tensor) => sum(abs(values), { dims: 1, keepDim: true });
  if (method === 'l1') layer.row_pruning_mask = fixedMask(own, sizes, ratio);
  else layer.row_mask_scores = scoresFor(own, [own.size(0), 1]);
  const mask = () => {
    const { row_pruning_mask: fixed, row_mask_scores: scores } = layer;
    return maskOf({ fixed, scores }, ratio, layer.weight);
  };
  return {
    kind: 'row_pruning',
    offset,
    mask,
    compress: ({ weight, bias }) => {
      const rows = mask();
      return { weight: weight.mul(rows), bias: bias?.mul(rows.reshape(-1)) ?? null };
    },
  };
}
