// Head pruning: sets blocks of inputs of the layer after attention to 0, one block per head.

import { DsError } from '../errors.js';
import { leading, required } from '../runtime/required.js';
import type { CompressedLinear } from './compressed-layers.js';
import type { CompressionSection, Technique } from './technique.js';
import { maskOf, scoresFor } from './top-mask.js';

type Section = CompressionSection['head_pruning'];

/**
 * Trained scores select the remaining heads in each step. Throws DS_SHAPE if num_heads does not
 * divide the inputs of `layer`. Source: DeepSpeed's enable_head_pruning.
 */
export function headPruning(
  layer: CompressedLinear,
  { num_heads, schedule_offset: offset }: Section['shared_parameters'],
  { dense_ratio: ratio }: Section['different_groups'][string]['params'],
): Technique {
  const heads = required(num_heads);
  const [outputs, inputs] = leading(layer.weight.shape, 2);
  if (inputs % heads !== 0) throw uneven(inputs, heads);
  layer.head_pruning_scores = scoresFor(layer.weight, [1, heads]);
  const mask = () =>
    maskOf({ fixed: null, scores: layer.head_pruning_scores }, ratio, layer.weight);
  return {
    kind: 'head_pruning',
    offset,
    mask,
    compress: ({ weight, bias }) => {
      const blocks = weight.reshape(outputs, heads, inputs / heads);
      return { weight: blocks.mul(mask().reshape(heads, 1)).reshape(outputs, inputs), bias };
    },
  };
}

function uneven(inputs: number, heads: number): DsError {
  return new DsError({
    code: 'DS_SHAPE',
    op: 'head_pruning.shared_parameters.num_heads',
    expected: `a divisor of ${inputs}, the inputs of the layer`,
    got: String(heads),
  });
}
