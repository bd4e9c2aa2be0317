// Differentiable collectives: each runs a collective in the forward, and records the collective of
// the gradient. Sources: Shoeybi et al. 2019 and Korthikanti et al. 2022 (Megatron-LM). Their
// functions f and g are copyToGroup() and sumOverGroup().

import type { ProcessGroup } from '../comm/index.js';
import {
  type GradFn,
  isGradEnabled,
  linearOfRank,
  noGrad,
  record,
  scope,
  Tensor,
} from '../tensor/index.js';
import {
  beginGather,
  beginSum,
  type Exchange,
  gatherAlong,
  partAlong,
  type SharedDim,
  type StreamChoice,
  splitEvenly,
  sumAlong,
} from './exchanges.js';
import { requireShared } from './require-group.js';

/**
 * Selects the group's own stream. The collective runs there before compute work that is enqueued
 * later.
 */
const ahead: StreamChoice = (group) => group.beside.lead();

/**
 * Records that `out` was computed from `x`. The gradient of `x` is the result of `begin` on the
 * gradient of `out`.
 *
 * Autograd calls `begin` on the group's own stream as soon as the last layer that reads `out` has
 * added its part of the gradient. The exchange then overlaps the gradient of that layer's weight.
 */
function recordEarly(
  name: string,
  x: Tensor,
  out: Tensor,
  begin: (part: Tensor, where: StreamChoice) => Exchange,
): void {
  let running: Exchange | null = null;
  record(name, [x], [out], [], ([grad], sink) => {
    scope(() => {
      const { work, result } = running ?? begin(grad, ahead);
      work.wait();
      sink.addGrad(0, result());
      running?.target.dispose();
    });
  });
  const { gradFn: node } = out as { gradFn: GradFn | null };
  if (!node) return;
  node.whenComplete = () => {
    const part = node.grads[out.gradIndex];
    if (!part?.isContiguous) return;
    running = begin(part, ahead);
    running.target.keep();
  };
}

/**
 * Delays the exchange of the gradient of `out` until all its readers are done. Callers use it if
 * some ranks have one reading layer more than others: the ranks then start exchanges in the same
 * order.
 */
export function beginLate(out: Tensor): void {
  if (out.gradFn) nodeOf(out).whenComplete = null;
}

/** Results of copyToGroup() by tensor: layers that read the same tensor share one exchange. */
const copies = new WeakMap<Tensor, { group: ProcessGroup; copy: Tensor }>();

/**
 * Returns x, which is equal on all ranks of the group, for layers that are split over the ranks.
 * The gradient of x is the sum of the ranks' partial gradients (f of Megatron-LM).
 *
 * The exchange of the gradient starts as soon as the last linear layer that reads the result has
 * its part. It overlaps the gradient of that layer's weight. Two calls for one computed tensor
 * share one exchange. backward() throws DS_COMM if a rank fails.
 */
export function copyToGroup(x: Tensor, group: ProcessGroup): Tensor {
  requireShared('copyToGroup', x, group);
  if (group.size === 1 || !x.requiresGrad || !isGradEnabled()) return x;
  const known = copies.get(x);
  if (known?.group === group && !known.copy.isDisposed && !nodeOf(known.copy).isReleased) {
    return known.copy;
  }
  const copy = x.alias(x.shape, x.strides);
  recordEarly('copy_to_group', x, copy, (part, where) => {
    const sum = Tensor.emptyLike(part);
    const from = part.contiguous();
    const options = { output: sum, purpose: 'copyToGroup', stream: where(group) };
    return { work: group.allReduce(from, options), target: sum, result: () => sum };
  });
  // A leaf is not cached, because several graphs, each with its own backward, may contain it.
  if (x.gradFn) copies.set(x, { group, copy });
  return copy;
}

/**
 * copyToGroup() for a layer with copies on other ranks. Only the copy with `counts` contributes a
 * gradient. The exchange begins after all readers of the result are done.
 */
export function copyToCopies(x: Tensor, group: ProcessGroup, counts: boolean): Tensor {
  const copy = copyToGroup(x, group);
  if (copy !== x) beginLate(copy);
  return counts ? copy : withoutGradient(x);
}

/**
 * Returns x without a gradient from its readers, because the copy on another rank provides it. The
 * result still requires a gradient if x does, so that all copies of a layer take part in the same
 * exchanges.
 */
export function withoutGradient(x: Tensor): Tensor {
  if (!x.requiresGrad || !isGradEnabled()) return x;
  const out = x.alias(x.shape, x.strides);
  record('without_gradient', [x], [out], [], () => {});
  return out;
}

const nodeOf = (x: Tensor): GradFn => x.gradFn as GradFn;

/**
 * Returns the sum of the ranks' tensors on every rank (g of Megatron-LM). The gradient of the
 * result is equal on all ranks, and is the gradient of each rank's tensor. Throws DS_COMM if the
 * ranks disagree or one fails.
 */
export function sumOverGroup(x: Tensor, group: ProcessGroup): Tensor {
  requireShared('sumOverGroup', x, group);
  if (group.size === 1) return x;
  const out = noGrad(() => {
    const sum = Tensor.empty(x.shape, x.dtype, x.device);
    group.allReduce(x.contiguous(), { output: sum, purpose: 'sumOverGroup' }).wait();
    return sum;
  });
  record('sum_over_group', [x], [out], [], ([grad], sink) => sink.addGrad(0, grad));
  return out;
}

/**
 * Returns the sum of the ranks' x weight^T + bias. Each rank has some of the inputs: x [.., inputs
 * here] and weight [out, inputs here]. All ranks have the same bias [out], or null. Rank 0 adds the
 * bias in its product, which saves a pass over the sum. Throws DS_SHAPE, DS_COMM.
 */
export function sumOfLinear(
  x: Tensor,
  weight: Tensor,
  bias: Tensor | null,
  group: ProcessGroup,
): Tensor {
  return sumOverGroup(linearOfRank(x, weight, bias, group.rank === 0), group);
}

/**
 * Returns a split of `size` elements in `dim`: even, or with one element more on the first ranks.
 */
function evenly(group: ProcessGroup, dim: number, size: number): SharedDim {
  return { group, dim, sizes: splitEvenly(size, group.size) };
}

type Along = (op: string, x: Tensor, shared: SharedDim) => Tensor;

/** Returns a differentiable exchange. `forward` runs on the input, `backward` on the gradient. */
function exchange(name: string, forward: Along, backward: Along) {
  return (x: Tensor, shared: SharedDim): Tensor => {
    if (shared.group.size === 1) return x;
    const out = noGrad(() => scope(() => forward(name, x, shared)));
    record(name, [x], [out], [], ([grad], sink) => {
      sink.addGrad(
        0,
        scope(() => backward(`${name} backward`, grad, shared)),
      );
    });
    return out;
  };
}

/**
 * Gathers the ranks' parts. For a whole tensor that all ranks use in the same way: the gradient of
 * a rank's part is its part of the gradient.
 */
export const gatherShared = exchange('gatherFromGroup', gatherAlong, partAlong);
/**
 * Selects this rank's part of a tensor that is equal on all ranks. The gradient gathers the parts.
 */
export const scatterShared = exchange('scatterToGroup', partAlong, gatherAlong);
/**
 * Starts to gather the ranks' parts, overlapped with the next compute work. The returned function
 * waits, and returns the whole tensor. Not differentiable.
 */
export function beginWhole(x: Tensor, shared: SharedDim): () => Tensor {
  const { work, result } = beginGather('gatherForGroup', x, shared, ahead);
  return () => {
    work.wait();
    return result();
  };
}

/**
 * Gathers the ranks' parts. For a whole tensor that each rank uses differently: the gradient of a
 * rank's part is its part of the sum of the ranks' gradients. That exchange overlaps the gradient
 * of the last weight that reads the whole tensor.
 */
export function gatherForAll(x: Tensor, shared: SharedDim): Tensor {
  if (shared.group.size === 1) return x;
  const name = 'gatherForGroup';
  const out = noGrad(() => scope(() => gatherAlong(name, x, shared)));
  recordEarly(name, x, out, (part, where) => beginSum(`${name} backward`, part, shared, where));
  return out;
}

/**
 * Sums the ranks' whole tensors, and returns this rank's part of the sum. The gradient gathers the
 * parts.
 */
export const sumShared = exchange('sumToParts', sumAlong, gatherAlong);

/**
 * Concatenates the ranks' parts along `dim` on every rank. All ranks must use the result in the
 * same way: the gradient of x is this rank's part of the gradient. `size`: the size in `dim` of all
 * parts; if it does not divide, the first ranks have one element more. Default: equal parts. Throws
 * DS_SHAPE if the sizes do not fit, DS_COMM if the ranks disagree or one fails.
 */
export function gatherFromGroup(x: Tensor, group: ProcessGroup, dim = -1, size?: number): Tensor {
  requireShared('gatherFromGroup', x, group);
  return gatherShared(x, evenly(group, dim, size ?? x.size(dim) * group.size));
}

/**
 * Returns this rank's part along `dim` of x, which is equal on all ranks. The gradient gathers the
 * parts. If the size does not divide, the first ranks have one element more. Throws DS_SHAPE if x
 * has no such dim; backward() throws DS_COMM.
 */
export function scatterToGroup(x: Tensor, group: ProcessGroup, dim = -1): Tensor {
  requireShared('scatterToGroup', x, group);
  return scatterShared(x, evenly(group, dim, x.size(dim)));
}

/**
 * Concatenates the ranks' parts along `dim` for layers that are split over the ranks. The gradient
 * of x is this rank's part of the sum of all ranks' gradients. It is the first half of Megatron's
 * sequence parallelism. `size`: see gatherFromGroup(). Throws DS_SHAPE if the sizes do not fit,
 * DS_COMM if the ranks disagree or one fails.
 */
export function gatherForGroup(x: Tensor, group: ProcessGroup, dim: number, size?: number): Tensor {
  requireShared('gatherForGroup', x, group);
  return gatherForAll(x, evenly(group, dim, size ?? x.size(dim) * group.size));
}

/**
 * Returns this rank's part along `dim` of the sum of the ranks' tensors. The gradient gathers the
 * parts. It is the second half of Megatron's sequence parallelism. Throws DS_SHAPE if the sizes do
 * not fit, DS_COMM if the ranks disagree or one fails.
 */
export function sumToParts(x: Tensor, group: ProcessGroup, dim: number): Tensor {
  requireShared('sumToParts', x, group);
  return sumShared(x, evenly(group, dim, x.size(dim)));
}

/** The copies of one tensor that several ranks have. */
interface Copies {
  group: ProcessGroup;
  /** Index of this rank's copy. */
  index: number;
  /** Number of copies. */
  count: number;
}

/**
 * Returns x, a tensor with copies on other ranks of the group. The gradient of x is the sum of the
 * copies' gradients, so each copy gets the whole gradient. All ranks of the group must call it,
 * also with other copies. backward() throws DS_COMM.
 */
export function copyWithReplicas(x: Tensor, { group, index, count }: Copies): Tensor {
  if (group.size === 1 || !x.requiresGrad || !isGradEnabled()) return x;
  const out = x.alias(x.shape, x.strides);
  record('copy_beside_others', [x], [out], [], ([grad], sink) => {
    scope(() => {
      const { shape, dtype, device } = grad;
      const all = Tensor.empty([count, ...shape], dtype, device).zero_();
      const ownTensor = all.narrow(0, index, 1).squeeze(0);
      ownTensor.copy_(grad);
      group.allReduce(all, { purpose: 'copyWithReplicas' }).wait();
      sink.addGrad(0, ownTensor);
    });
  });
  return out;
}
