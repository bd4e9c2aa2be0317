// Pruning: a mask is 1 for the largest values or scores and 0 for the others. It sets weights to 0.

import { DsError } from '../errors.js';
import { kaimingUniform } from '../nn/initializers.js';
import { Parameter } from '../nn/parameter.js';
import { leading, required } from '../runtime/required.js';
import { abs, cast, held, noGrad, ones, scope, sum, Tensor, topk, zeros } from '../tensor/index.js';
import type { CompressedLinear } from './compressed-layers.js';
import { type Params, type Shared, straightThrough, type Technique } from './technique.js';

/**
 * Returns 1 for the ceil(ratio n) largest of the n `values`, 0 for the others; the first of equal
 * values stay.
 */
export function selectLargest(values: Tensor, ratio: number): Tensor {
  return noGrad(() =>
    scope(() => {
      const { shape, dtype, device, numel } = values;
      const keep = Math.ceil(ratio * numel);
      const { indices } = topk(values.reshape(numel), keep);
      const chosen = zeros([numel], { dtype, device }).scatter(
        0,
        indices,
        ones([keep], { dtype, device }),
      );
      return chosen.reshape(...shape);
    }),
  );
}

/** Returns a fixed mask of the currently largest values: a buffer of a layer, f32. */
function createFixedMask(
  weight: Parameter,
  measure: (values: Tensor) => Tensor,
  ratio: number,
): Tensor {
  return held(() =>
    noGrad(() =>
      scope(() => {
        const values = Tensor.empty(weight.shape, 'f32', weight.device);
        weight.writeInitial(values);
        return selectLargest(measure(values), ratio);
      }),
    ),
  );
}

/** Returns trainable scores of `shape`, in the dtype and the memory of `weight`. */
function createScores(weight: Parameter, shape: readonly number[]): Parameter {
  const scores = new Parameter(shape, kaimingUniform({ a: Math.sqrt(5) }));
  if (weight.isMaterialized) scores.moveTo(weight.device, weight.dtype);
  return scores;
}

/**
 * Returns the mask of a layer in `like`'s dtype: the fixed mask, or the mask of the currently
 * largest scores, which receive its gradient. Source: DeepSpeed's TopKBinarizer.
 */
function computeMask(
  { fixed, scores }: { fixed: Tensor | null; scores: Parameter | null },
  ratio: number,
  like: Tensor,
): Tensor {
  if (!scores) return cast(required(fixed), like.dtype);
  return cast(straightThrough((values) => selectLargest(values, ratio))(scores), like.dtype);
}

// Sparse pruning: single weights become 0.

/**
 * Returns a technique that selects the remaining elements of `layer`: now, by magnitude ("l1"), or
 * in each step by trained scores ("topk"). Source: DeepSpeed's enable_sparse_pruning.
 */
export function createSparsePruning(
  layer: CompressedLinear,
  { method, schedule_offset: offset }: Shared<'sparse_pruning'>,
  { dense_ratio: ratio }: Params<'sparse_pruning'>,
): Technique {
  const { weight: parameter } = layer;
  if (method === 'l1') layer.sparse_pruning_mask = createFixedMask(parameter, abs, ratio);
  else layer.sparse_mask_scores = createScores(parameter, parameter.shape);
  return {
    kind: 'sparse_pruning',
    offset,
    compress: ({ weight, bias }) => {
      const { sparse_pruning_mask: fixed, sparse_mask_scores: scores } = layer;
      return { weight: weight.mul(computeMask({ fixed, scores }, ratio, weight)), bias };
    },
  };
}

// Row pruning: outputs of a linear layer become 0, with their biases.

/**
 * Returns a technique that selects the remaining outputs of `layer`: now, by the sums of their
 * weights' magnitudes ("l1"), or in each step by trained scores ("topk"). Source: DeepSpeed's
 * enable_row_pruning.
 */
export function createRowPruning(
  layer: CompressedLinear,
  { method, schedule_offset: offset }: Shared<'row_pruning'>,
  { dense_ratio: ratio }: Params<'row_pruning'>,
): Technique {
  const { weight: parameter } = layer;
  const sumMagnitudes = (values: Tensor) => sum(abs(values), { dims: 1, keepDim: true });
  if (method === 'l1') layer.row_pruning_mask = createFixedMask(parameter, sumMagnitudes, ratio);
  else layer.row_mask_scores = createScores(parameter, [parameter.size(0), 1]);
  const mask = () => {
    const { row_pruning_mask: fixed, row_mask_scores: scores } = layer;
    return computeMask({ fixed, scores }, ratio, layer.weight);
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

// Head pruning: sets blocks of inputs of the layer after attention to 0, one block per head.

/**
 * Returns a technique that selects the remaining heads in each step by trained scores. Throws
 * DS_SHAPE if num_heads does not divide the inputs of `layer`. Source: DeepSpeed's
 * enable_head_pruning.
 */
export function createHeadPruning(
  layer: CompressedLinear,
  { num_heads, schedule_offset: offset }: Shared<'head_pruning'>,
  { dense_ratio: ratio }: Params<'head_pruning'>,
): Technique {
  const heads = required(num_heads);
  const [outputs, inputs] = leading(layer.weight.shape, 2);
  if (inputs % heads !== 0) throw headCountError(inputs, heads);
  layer.head_pruning_scores = createScores(layer.weight, [1, heads]);
  const mask = () =>
    computeMask({ fixed: null, scores: layer.head_pruning_scores }, ratio, layer.weight);
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

function headCountError(inputs: number, heads: number): DsError {
  return new DsError({
    code: 'DS_SHAPE',
    op: 'head_pruning.shared_parameters.num_heads',
    expected: `a divisor of ${inputs}, the inputs of the layer`,
    got: String(heads),
  });
}
