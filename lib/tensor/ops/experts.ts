// Parts of mixture-of-experts layers: routing, rows sorted by expert, products of ragged groups,
// and the weighted sum of each token's expert outputs.

import { valueError } from '../../runtime/input-errors.js';
import { isObject } from '../../runtime/is-object.js';
import * as kernels from '../../runtime/kernels.generated.js';
import { requireInteger } from '../../runtime/require-number.js';
import { requireType } from '../../runtime/require-type.js';
import { required } from '../../runtime/required.js';
import { describe } from '../../runtime/view.js';
import { refuseBatchInvariant } from '../batch-invariant.js';
import { record } from '../tape.js';
import { Tensor } from '../tensor.js';
import { arange } from './creation.js';
import {
  overwriteOrAdd,
  requireInput,
  requireSameDevice,
  requireTensor,
  shapeError,
  toRowMajor,
} from './shapes.js';

/** The experts of each token, and their weights. */
export interface Routes {
  /** Experts of each token [T, k] i32, largest weights first. */
  ids: Tensor;
  /** Weights of the experts [T, k] f32 (f64 for f64); differentiable. */
  weights: Tensor;
  /** Whether weights scale the inputs of experts, not their outputs. Default: false. */
  scalesInputs?: boolean;
}

/** Options of routeTopK(). */
export interface RouteOptions {
  /** Experts per token. */
  k: number;
  /** Whether the weights of a token's experts add up to 1. */
  normalize: boolean;
}

// Operations: experts.

/**
 * Returns the k experts with the largest logits [T, E] of each token, E at most 512; of equal
 * logits the lower index. Weights are the softmax over all experts or, normalized, over the chosen
 * ones; f32 inside (f64 for f64). Throws DS_SHAPE or DS_DTYPE if the tensors do not fit together,
 * DS_ARGUMENT for invalid options. Sources: Shazeer et al. 2017; transformers' MixtralTopKRouter.
 */
export function routeTopK(unpacked: Tensor, options: RouteOptions): Routes {
  requireTensor('routeTopK', unpacked);
  if (!isObject(options)) throw valueError('routeTopK', 'options { k, normalize }', options);
  const { k, normalize } = options;
  requireInteger('routeTopK k', k, 1);
  requireType('routeTopK normalize', normalize, 'boolean');
  const logits = toRowMajor(unpacked);
  const { device, dtype } = logits;
  const shape = [...logits.shape.slice(0, 1), k];
  const ids = Tensor.empty(shape, 'i32', device);
  const weights = Tensor.empty(shape, dtype === 'f64' ? 'f64' : 'f32', device);
  kernels.routeTopK({ logits, x: null, weight: null, bias: null, ids, weights, normalize });
  record('route_top_k', [unpacked], [weights], [logits, ids], ([grad], sink) => {
    const dweights = toRowMajor(grad);
    sink.write(0, (dlogits, accumulate) =>
      kernels.routeTopKBackward({ logits, ids, dweights, dlogits, normalize, accumulate }),
    );
  });
  return { ids, weights };
}

/** Rows sorted by expert. All data is on the device; the host does not have the group sizes. */
export interface RowGroups {
  /** [groups + 1] i32: group g has the rows from offsets[g] to offsets[g + 1]. */
  readonly offsets: Tensor;
  /** [T k] i32: the token of each row; -1 after the last group. */
  readonly rows: Tensor;
  /** [T, k] i32: the row of each choice; -1 for a choice outside these groups. */
  readonly places: Tensor;
  /** Whether every choice is in a group. */
  readonly isWhole: boolean;
}

/**
 * Sorts the choices `ids` [T, k] i32 by expert: of all `count` experts or, with `first`, of `count`
 * experts from `first` on. Other ranks process the choices of other experts. Throws DS_SHAPE or
 * DS_DTYPE if the tensors do not fit together, DS_ARGUMENT for invalid options.
 */
export function groupRows(ids: Tensor, count: number, first: number | null = null): RowGroups {
  requireTensor('groupRows', ids);
  requireInteger('groupRows count', count, 1);
  requireInteger('groupRows first', first ?? 0, 0);
  const { device } = ids;
  const offsets = Tensor.empty([count + 1], 'i32', device);
  const rows = Tensor.empty([ids.numel], 'i32', device);
  const places = Tensor.empty(ids.shape, 'i32', device);
  kernels.groupRows({ ids: toRowMajor(ids), offsets, rows, places, first: first ?? 0 });
  return { offsets, rows, places, isWhole: first === null };
}

/**
 * Multiplies each group's rows with the group's weight: out[r] = x[r] w[g]^T for a row r of group
 * g. x [R, K] has the rows of the groups or, with `gather`, tokens [T, K], where row r reads
 * rows[r]. weight [groups, N, K]. Returns [R, N], zeros after the last group. f32 accumulation.
 * Throws DS_SHAPE, DS_DTYPE or DS_DEVICE if the tensors do not fit together. Source: Gale et al.
 * 2022 (MegaBlocks).
 */
export function groupedLinear(
  input: Tensor,
  weight: Tensor,
  groups: RowGroups,
  gather = false,
): Tensor {
  requireInput('groupedLinear', input, weight);
  requireSameDevice('groupedLinear', input, groups.offsets);
  if (weight.ndim !== 3 || input.ndim !== 2 || input.shape[1] !== weight.shape[2]) {
    throw shapeError(
      'groupedLinear',
      'rows [R, in] and a weight [groups, out, in]',
      `${describe(input)} and ${describe(weight)}`,
    );
  }
  const [x, w] = [toRowMajor(input), toRowMajor(weight)];
  const { offsets, places } = groups;
  const rows = gather ? groups.rows : null;
  const count = groups.rows.numel;
  const width = required(weight.shape[1]);
  const out = Tensor.empty([count, width], x.dtype, x.device);
  refuseBatchInvariant('experts', 'dense layers', 'a mixture of experts');
  kernels.groupedMatmul({ x, rows, weight: w, offsets, out, plain: false });
  // Only the gradient of the weight reads x, so x may be freed without it.
  const read = weight.requiresGrad ? [x, w] : [w];
  record(
    'grouped_linear',
    [input, weight],
    [out],
    [...read, offsets, groups.rows, places],
    ([grad], sink) => {
      const dout = toRowMajor(grad);
      const product = (to: Tensor): void =>
        kernels.groupedMatmul({ x: dout, rows: null, weight: w, offsets, out: to, plain: true });
      sink.write(0, (dx, accumulate) => {
        if (!rows) return overwriteOrAdd(dx, accumulate, product);
        const sorted = Tensor.empty([count, required(w.shape[2])], dout.dtype, dout.device);
        product(sorted);
        kernels.combineRows({ y: sorted, places, weights: null, out: dx, accumulate });
        sorted.dispose();
      });
      sink.markComplete(0);
      sink.writeDeferred(1, [dout, x, offsets, groups.rows], (dweight, accumulate) =>
        kernels.groupedWeightGradient({ dout, x, rows, offsets, dweight, accumulate }),
      );
    },
  );
  return out;
}

/**
 * Combines the expert outputs of each token: out[t] is the sum over its choices j of weights[t, j]
 * y[places[t, j]], f32 inside (f64 for f64), rounded once. y [R, C], weights [T, k] f32; returns
 * [T, C]. Throws DS_SHAPE, DS_DTYPE or DS_DEVICE if the tensors do not fit together.
 */
export function combineRows(input: Tensor, weights: Tensor, groups: RowGroups): Tensor {
  const { places, isWhole } = groups;
  requireSameDevice('combineRows', input, weights);
  if (input.ndim !== 2) throw shapeError('combineRows', 'rows [R, C]', describe(input));
  const [y, factors] = [toRowMajor(input), toRowMajor(weights)];
  const shape = [required(places.shape[0]), required(y.shape[1])];
  const out = Tensor.empty(shape, y.dtype, y.device);
  kernels.combineRows({ y, places, weights: factors, out, accumulate: false });
  record('combine_rows', [input, weights], [out], [y, factors, places], ([grad], sink) => {
    const dout = toRowMajor(grad);
    // One pass writes both gradients to new memory. It does not write rows after the last group.
    const dy = Tensor.emptyLike(y);
    if (!isWhole) kernels.fill({ out: dy, value: 0 });
    const dweights = Tensor.emptyLike(factors);
    kernels.combineRowsBackward({ y, places, weights: factors, dout, dy, dweights });
    sink.addGrad(0, dy);
    sink.addGrad(1, dweights);
    dy.dispose();
    dweights.dispose();
  });
  return out;
}

/** Returns how many choices `ids` [T, k] i32 each of `experts` experts has: [experts] f32. */
export function choicesOf(ids: Tensor, experts: number): Tensor {
  const { offsets } = groupRows(ids, experts, 0);
  return offsets
    .narrow(0, 1, experts)
    .sub(offsets.narrow(0, 0, experts))
    .to('f32');
}

// Operations: none.

/**
 * @internal groupedLinear() of matrices [in, out]: out[r] = x[r] w[g] for a row r of group g. x [R,
 * K], weight [groups, K, N]; returns [R, N]. Throws DS_SHAPE, DS_DTYPE, DS_DEVICE.
 */
export function groupedProduct(input: Tensor, weight: Tensor, groups: RowGroups): Tensor {
  requireInput('groupedProduct', input, weight);
  requireSameDevice('groupedProduct', input, groups.offsets);
  const [x, w] = [toRowMajor(input), toRowMajor(weight)];
  const { offsets, rows } = groups;
  const out = Tensor.empty([rows.numel, required(weight.shape[2])], x.dtype, x.device);
  refuseBatchInvariant('experts', 'dense layers', 'a mixture of experts');
  kernels.groupedMatmul({ x, rows: null, weight: w, offsets, out, plain: true });
  const read = weight.requiresGrad ? [x, w] : [w];
  record('grouped_product', [input, weight], [out], [...read, offsets], ([grad], sink) => {
    const dout = toRowMajor(grad);
    sink.write(0, (dx, accumulate) =>
      overwriteOrAdd(dx, accumulate, (to) =>
        kernels.groupedMatmul({ x: dout, rows: null, weight: w, offsets, out: to, plain: false }),
      ),
    );
    sink.markComplete(0);
    // The weight is transposed, so the factors of its gradient are exchanged.
    sink.writeDeferred(1, [dout, x, offsets], (dweight, accumulate) =>
      kernels.groupedWeightGradient({ dout: x, x: dout, rows: null, offsets, dweight, accumulate }),
    );
  });
  return out;
}

/**
 * @internal A frozen weight that each product computes from a smaller form, and frees at its end.
 */
export interface ComputedWeight {
  /** Shape of the layer [groups, .., ..]. */
  readonly shape: readonly number[];
  /** The tensor with most of its values. */
  readonly stored: Tensor;
  /** Returns the weight, contiguous. */
  values(dtype: Tensor['dtype']): Tensor;
}

/**
 * @internal groupedLinear() or, with `isPlain`, groupedProduct() by a computed weight. Forward and
 * backward each compute it, and neither keeps it.
 */
export function groupedFrozen(
  input: Tensor,
  weight: ComputedWeight,
  groups: RowGroups,
  { isGathered, isPlain }: { isGathered: boolean; isPlain: boolean },
): Tensor {
  const x = toRowMajor(input);
  const { offsets, places } = groups;
  const rows = isGathered ? groups.rows : null;
  const count = groups.rows.numel;
  const [, first = 0, second = 0] = weight.shape;
  const [inputs, outputs] = isPlain ? [first, second] : [second, first];
  const multiply = (x: Tensor, rows: Tensor | null, out: Tensor, plain: boolean): void => {
    const w = weight.values(x.dtype);
    kernels.groupedMatmul({ x, rows, weight: w, offsets, out, plain });
    w.dispose();
  };
  const out = Tensor.empty([count, outputs], x.dtype, x.device);
  multiply(x, rows, out, isPlain);
  const read = [weight.stored, offsets, groups.rows, places];
  record('grouped_linear', [input], [out], read, ([grad], sink) => {
    const dout = toRowMajor(grad);
    sink.write(0, (dx, accumulate) => {
      const product = (to: Tensor): void => multiply(dout, null, to, !isPlain);
      if (!rows) return overwriteOrAdd(dx, accumulate, product);
      const sorted = Tensor.empty([count, inputs], dout.dtype, dout.device);
      product(sorted);
      kernels.combineRows({ y: sorted, places, weights: null, out: dx, accumulate });
      sorted.dispose();
    });
  });
  return out;
}

/** @internal Returns the group of each row, [T k] i32; undefined for rows after the last group. */
export function groupOfRows({ offsets, rows }: RowGroups): Tensor {
  const count = offsets.numel - 1;
  const places = arange(rows.numel, { dtype: 'i32', device: rows.device }).unsqueeze(1);
  const endsBefore = offsets.narrow(0, 1, count).unsqueeze(0).le(places);
  return endsBefore
    .to('f32')
    .sum(1)
    .clamp({ max: count - 1 })
    .to('i32');
}
