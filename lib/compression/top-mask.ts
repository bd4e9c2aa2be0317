// Masks: 1 for the largest values or scores, 0 for the others.

import { kaimingUniform } from '../nn/initializers.js';
import { Parameter } from '../nn/parameter.js';
import { required } from '../runtime/required.js';
import { cast, held, noGrad, ones, scope, Tensor, topk, zeros } from '../tensor/index.js';
import { straightThrough } from './technique.js';

/**
 * Returns 1 for the ceil(ratio n) largest of the n `values`, 0 for the others; the first of equal
 * values stay.
 */
export function topMask(values: Tensor, ratio: number): Tensor {
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
export function fixedMask(
  weight: Parameter,
  measure: (values: Tensor) => Tensor,
  ratio: number,
): Tensor {
  return held(() =>
    noGrad(() =>
      scope(() => {
        const values = Tensor.empty(weight.shape, 'f32', weight.device);
        weight.writeInitial(values);
        return topMask(measure(values), ratio);
      }),
    ),
  );
}

/** Returns trainable scores of `shape`, in the dtype and the memory of `weight`. */
export function scoresFor(weight: Parameter, shape: readonly number[]): Parameter {
  const scores = new Parameter(shape, kaimingUniform({ a: Math.sqrt(5) }));
  if (weight.isMaterialized) scores.moveTo(weight.device, weight.dtype);
  return scores;
}

/**
 * Returns the mask of a layer in `like`'s dtype: the fixed one, or that of the currently largest
 * scores, which receive its gradient. Source: DeepSpeed's TopKBinarizer.
 */
export function maskOf(
  { fixed, scores }: { fixed: Tensor | null; scores: Parameter | null },
  ratio: number,
  like: Tensor,
): Tensor {
  if (!scores) return cast(required(fixed), like.dtype);
  return cast(straightThrough((values) => topMask(values, ratio))(scores), like.dtype);
}
