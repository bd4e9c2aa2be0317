// Masks: 1 at the largest values or scores, 0 elsewhere.
import { kaimingUniform } from '../nn/initializers.js';
import { Parameter } from '../nn/parameter.js';
import { cast, held, noGrad, ones, scope, Tensor, topk, zeros } from '../tensor/index.js';
import { straightThrough } from './technique.js';

/** 1 at the ceil(ratio n) largest of the n `values`, 0 elsewhere; of equal ones the first stay. */
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

/** A fixed mask of the currently largest values: a buffer of a layer, f32. */
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

/** Scores of `shape`, in the dtype and the memory of `weight`; they are trained with it. */
export function scoresFor(weight: Parameter, shape: readonly number[]): Parameter {
  const scores = new Parameter(shape, kaimingUniform({ a: Math.sqrt(5) }));
  if (weight.isMaterialized) scores.moveTo(weight.device, weight.dtype);
  return scores;
}

/**
 * The mask of a layer in `like`'s dtype: the fixed one, or the one of the currently largest scores,
 * which receive its gradient. Source: DeepSpeed's TopKBinarizer.
 */
export function maskOf(
  { fixed, scores }: { fixed: Tensor | null; scores: Parameter | null },
  ratio: number,
  like: Tensor,
): Tensor {
  if (!scores) return cast(fixed as Tensor, like.dtype);
  return cast(straightThrough((values) => topMask(values, ratio))(scores), like.dtype);
}
