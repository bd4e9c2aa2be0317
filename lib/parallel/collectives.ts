// Differentiable collectives: each with the collective of its gradient. Source: Shoeybi et al. 2019
// and Korthikanti et al. 2022 (Megatron-LM); their f and g are copyToGroup and sumOverGroup.

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

/** Runs on the group's own stream, ahead of the next compute work. */
const ahead: StreamChoice = (group) => group.beside.lead();

/**
 * Records `out`, computed from `x`. Its gradient is the result of `begin` on the gradient of `out`.
 * `begin` starts on the group's own stream when the last layer that reads `out` has its part of the
 * gradient. It overlaps the gradient of that layer's weight.
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
 * Delays the exchange of the gradient of `out` until all readers of `out` are done. So ranks with
 * one reading layer more or less start their exchanges in the same order.
 */
export function beginLate(out: Tensor): void {
  if (out.gradFn) nodeOf(out).whenComplete = null;
}

/** Results of copyToGroup() per tensor: ops that read the same tensor share its exchange. */
const copies = new WeakMap<Tensor, { group: ProcessGroup; copy: Tensor }>();

/**
 * f: returns the tensor, which is equal on all ranks of the group. Its gradient is the sum of the
 * ranks' partial gradients. The exchange starts as soon as the last linear layer that reads the
 * tensor has its part, and overlaps the gradient of that layer's weight. Two calls for one computed
 * tensor share one exchange. Throws DS_COMM in the backward.
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
  // A leaf may be in several graphs, each with its own backward.
  if (x.gradFn) copies.set(x, { group, copy });
  return copy;
}

/**
 * copyToGroup() for a layer with copies on other ranks; only one copy contributes a gradient
 * (`counts`). Its exchange begins late.
 */
export function copyToCopies(x: Tensor, group: ProcessGroup, counts: boolean): Tensor {
  const copy = copyToGroup(x, group);
  if (copy !== x) beginLate(copy);
  return counts ? copy : withoutGradient(x);
}

/**
 * Returns the tensor without a gradient from its readers, because another rank's copy provides it.
 * It still requires a gradient if x does, so that both copies of a layer take part in the same
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
 * g: returns the sum of the ranks' tensors on every rank. Its gradient, equal on all ranks, is the
 * gradient of each rank's tensor. Throws DS_COMM if the ranks disagree or one fails.
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
 * Returns the sum of the ranks' x weight^T + bias. Each rank has some of the inputs, x [.., in
 * here] and weight [out, in here]; all have the same bias [out], or null. The first rank's product
 * adds the bias, which saves a pass. Throws DS_SHAPE, DS_COMM.
 */
export function sumOfLinear(
  x: Tensor,
  weight: Tensor,
  bias: Tensor | null,
  group: ProcessGroup,
): Tensor {
  return sumOverGroup(linearOfRank(x, weight, bias, group.rank === 0), group);
}

/** Splits the dim of `x` evenly, or with one more element on the first ranks. */
function evenly(group: ProcessGroup, dim: number, size: number): SharedDim {
  return { group, dim, sizes: splitEvenly(size, group.size) };
}

type Along = (op: string, x: Tensor, shared: SharedDim) => Tensor;

/** A differentiable exchange from a forward exchange and the exchange of its gradient. */
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
 * From parts to the whole tensor, which all ranks use in the same way: the gradient is this rank's
 * part of it.
 */
export const gatherShared = exchange('gatherFromGroup', gatherAlong, partAlong);
/** From the whole tensor, equal on all ranks, to this rank's part: the gradient is gathered. */
export const scatterShared = exchange('scatterToGroup', partAlong, gatherAlong);
/**
 * Starts gathering parts, overlapped with the next compute work. The returned function waits for
 * the whole tensor.
 */
export function beginWhole(x: Tensor, shared: SharedDim): () => Tensor {
  const { work, result } = beginGather('gatherForGroup', x, shared, ahead);
  return () => {
    work.wait();
    return result();
  };
}

/**
 * From parts to the whole tensor, which each rank uses differently. The gradients are summed,
 * overlapped with the gradient of the last weight that reads the whole tensor.
 */
export function gatherForAll(x: Tensor, shared: SharedDim): Tensor {
  if (shared.group.size === 1) return x;
  const name = 'gatherForGroup';
  const out = noGrad(() => scope(() => gatherAlong(name, x, shared)));
  recordEarly(name, x, out, (part, where) => beginSum(`${name} backward`, part, shared, where));
  return out;
}

/** From whole tensors to this rank's part of their sum: the gradient is gathered. */
export const sumShared = exchange('sumToParts', sumAlong, gatherAlong);

/**
 * Concatenates the ranks' parts along `dim` on every rank. Later work must be the same on all
 * ranks: the gradient is this rank's part. `size` is the size of all parts together; the first
 * ranks may have one element more. Default: equal parts. Throws DS_SHAPE if the sizes do not fit,
 * DS_COMM if the ranks disagree or one fails.
 */
export function gatherFromGroup(x: Tensor, group: ProcessGroup, dim = -1, size?: number): Tensor {
  requireShared('gatherFromGroup', x, group);
  return gatherShared(x, evenly(group, dim, size ?? x.size(dim) * group.size));
}

/**
 * Returns this rank's part along `dim` of a tensor that is equal on all ranks; its gradient is
 * gathered. Without even division the first ranks have one element more. Throws DS_SHAPE, and
 * DS_COMM in the backward.
 */
export function scatterToGroup(x: Tensor, group: ProcessGroup, dim = -1): Tensor {
  requireShared('scatterToGroup', x, group);
  return scatterShared(x, evenly(group, dim, x.size(dim)));
}

/**
 * Concatenates the ranks' parts along `dim` for layers that are split over the ranks: the gradient
 * is this rank's part of the sum of all ranks' gradients. First half of Megatron sequence
 * parallelism. Throws DS_SHAPE if the sizes do not fit, DS_COMM if the ranks disagree or one fails.
 */
export function gatherForGroup(x: Tensor, group: ProcessGroup, dim: number, size?: number): Tensor {
  requireShared('gatherForGroup', x, group);
  return gatherForAll(x, evenly(group, dim, size ?? x.size(dim) * group.size));
}

/**
 * Returns this rank's part along `dim` of the sum of the ranks' tensors (sumOverGroup()). Second
 * half of Megatron sequence parallelism. Throws DS_SHAPE if the sizes do not fit, DS_COMM if the
 * ranks disagree or one fails.
 */
export function sumToParts(x: Tensor, group: ProcessGroup, dim: number): Tensor {
  requireShared('sumToParts', x, group);
  return sumShared(x, evenly(group, dim, x.size(dim)));
}

/** Copies of one tensor on several ranks. */
interface Copies {
  group: ProcessGroup;
  /** Index of this rank's copy. */
  index: number;
  /** How many there are. */
  count: number;
}

/**
 * Returns the tensor, which has copies on other ranks of the group. Its gradient is the sum of the
 * copies' gradients, so every rank has the whole gradient of its inputs. All ranks of the group
 * take part. Throws DS_COMM in the backward.
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
