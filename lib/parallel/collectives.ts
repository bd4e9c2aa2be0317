// Collectives that the tape knows: each beside the one that is its gradient. Source: Shoeybi et al.
// 2019 and Korthikanti et al. 2022 (Megatron-LM), whose f and g are copyToGroup and sumOverGroup.

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
  shareOut,
  sumAlong,
  type Where,
} from './exchanges.js';
import { requireShared } from './require-group.js';

/** On the group's own stream, ahead of what compute does next. */
const ahead: Where = (group) => group.beside.lead();

/**
 * Records `out`, made of `x`, whose gradient is what `begin` makes of its own. That begins as soon
 * as the last layer which reads `out` has said that its part is there, on the group's own stream:
 * it runs behind the gradient of that layer's weight.
 */
function recordEarly(
  name: string,
  x: Tensor,
  out: Tensor,
  begin: (part: Tensor, where: Where) => Exchange,
): void {
  let running: Exchange | null = null;
  record(name, [x], [out], [], ([grad], sink) => {
    scope(() => {
      const { work, result } = running ?? begin(grad as Tensor, ahead);
      work.wait();
      sink.give(0, result());
      running?.place.dispose();
    });
  });
  const { gradFn: node } = out as { gradFn: GradFn | null };
  if (!node) return;
  node.whenComplete = () => {
    const part = node.grads[out.gradIndex];
    if (!part?.isContiguous) return;
    running = begin(part, ahead);
    running.place.keep();
  };
}

/**
 * The exchange of the gradient of `out` begins after all that reads it, so that ranks which read it
 * in one layer more or less begin it in the same order.
 */
export function beginLate(out: Tensor): void {
  if (out.gradFn) nodeOf(out).whenComplete = null;
}

/** What copyToGroup() gave for a tensor: ops that read the same one share its one exchange. */
const copies = new WeakMap<Tensor, { group: ProcessGroup; copy: Tensor }>();

/**
 * f: the tensor itself, which every rank of the group has alike; its gradient is the sum of the
 * ranks', which each have a part of it. The exchange begins as soon as the last linear layer that
 * reads the tensor has its part, and runs behind the gradient of that layer's weight. Called twice
 * for one computed tensor, there is still one exchange. Throws DS_COMM in the backward.
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
    return { work: group.allReduce(from, options), place: sum, result: () => sum };
  });
  // A leaf may be in several graphs, each with a backward of its own.
  if (x.gradFn) copies.set(x, { group, copy });
  return copy;
}

/**
 * copyToGroup() for a layer that has copies on other ranks, of which one alone gives the tensor a
 * gradient (`counts`). Its exchange begins late.
 */
export function copyToCopies(x: Tensor, group: ProcessGroup, counts: boolean): Tensor {
  const copy = copyToGroup(x, group);
  if (copy !== x) beginLate(copy);
  return counts ? copy : withoutGradient(x);
}

/**
 * The tensor itself, which gets no gradient of what reads it: that of another rank's copy is as
 * much. It wants one as it did, so that both copies of a layer take part in the same exchanges.
 */
export function withoutGradient(x: Tensor): Tensor {
  if (!x.requiresGrad || !isGradEnabled()) return x;
  const out = x.alias(x.shape, x.strides);
  record('without_gradient', [x], [out], [], () => {});
  return out;
}

const nodeOf = (x: Tensor): GradFn => x.gradFn as GradFn;

/**
 * g: the sum of the ranks' tensors, on every rank. Its gradient, alike on all, is that of each
 * rank's tensor. Throws DS_COMM.
 */
export function sumOverGroup(x: Tensor, group: ProcessGroup): Tensor {
  requireShared('sumOverGroup', x, group);
  if (group.size === 1) return x;
  const out = noGrad(() => {
    const sum = Tensor.empty(x.shape, x.dtype, x.device);
    group.allReduce(x.contiguous(), { output: sum, purpose: 'sumOverGroup' }).wait();
    return sum;
  });
  record('sum_over_group', [x], [out], [], ([grad], sink) => sink.give(0, grad as Tensor));
  return out;
}

/**
 * The sum of the ranks' x weight^T + bias, as one: each has some of the inputs, x [.., in here] and
 * weight [out, in here], and all have the bias [out] alike, null without one. The first rank's
 * product adds it, so that no pass of its own does. Throws DS_SHAPE, DS_COMM.
 */
export function sumOfLinear(
  x: Tensor,
  weight: Tensor,
  bias: Tensor | null,
  group: ProcessGroup,
): Tensor {
  return sumOverGroup(linearOfRank(x, weight, bias, group.rank === 0), group);
}

/** The dim of `x` shared out evenly, or with one more on the first ranks. */
function evenly(group: ProcessGroup, dim: number, size: number): SharedDim {
  return { group, dim, sizes: shareOut(size, group.size) };
}

type Along = (op: string, x: Tensor, shared: SharedDim) => Tensor;

/** A differentiable exchange, and the one that its gradient takes. */
function exchange(name: string, forward: Along, backward: Along) {
  return (x: Tensor, shared: SharedDim): Tensor => {
    if (shared.group.size === 1) return x;
    const out = noGrad(() => scope(() => forward(name, x, shared)));
    record(name, [x], [out], [], ([grad], sink) => {
      sink.give(
        0,
        scope(() => backward(`${name} backward`, grad as Tensor, shared)),
      );
    });
    return out;
  };
}

/** Parts to the whole, which all ranks then use alike: the gradient is this rank's part of it. */
export const gatherShared = exchange('gatherFromGroup', gatherAlong, partAlong);
/** The whole, alike on all ranks, to this rank's part: the gradient is all ranks' parts. */
export const scatterShared = exchange('scatterToGroup', partAlong, gatherAlong);
/** Begins to gather parts behind what compute does next; what it returns waits for the whole. */
export function beginWhole(x: Tensor, shared: SharedDim): () => Tensor {
  const { work, result } = beginGather('gatherForGroup', x, shared, ahead);
  return () => {
    work.wait();
    return result();
  };
}

/**
 * Parts to the whole, of which each rank then makes something else: the gradients are summed,
 * behind the gradient of the last weight that reads the whole.
 */
export function gatherForAll(x: Tensor, shared: SharedDim): Tensor {
  if (shared.group.size === 1) return x;
  const name = 'gatherForGroup';
  const out = noGrad(() => scope(() => gatherAlong(name, x, shared)));
  recordEarly(name, x, out, (part, where) => beginSum(`${name} backward`, part, shared, where));
  return out;
}

/** Whole tensors to this rank's part of their sum: the gradient is all ranks' parts. */
export const sumShared = exchange('sumToParts', sumAlong, gatherAlong);

/**
 * The ranks' parts side by side along `dim`, on every rank; what follows is the same on all, so
 * that the gradient is this rank's part of it. `size` is that of all parts together, where the
 * first ranks have one more; default: all have as much as this one. Throws DS_SHAPE, DS_COMM.
 */
export function gatherFromGroup(x: Tensor, group: ProcessGroup, dim = -1, size?: number): Tensor {
  requireShared('gatherFromGroup', x, group);
  return gatherShared(x, evenly(group, dim, size ?? x.size(dim) * group.size));
}

/**
 * This rank's part along `dim` of what all ranks have alike; its gradient is gathered. The first
 * ranks have one more where it does not come out even. Throws DS_SHAPE, and DS_COMM in the
 * backward.
 */
export function scatterToGroup(x: Tensor, group: ProcessGroup, dim = -1): Tensor {
  requireShared('scatterToGroup', x, group);
  return scatterShared(x, evenly(group, dim, x.size(dim)));
}

/**
 * The ranks' parts side by side along `dim` for layers of which each rank has a part: the gradient
 * is this rank's part of the sum of all ranks'. The first half of sequence parallelism. Throws
 * DS_SHAPE, DS_COMM.
 */
export function gatherForGroup(x: Tensor, group: ProcessGroup, dim: number, size?: number): Tensor {
  requireShared('gatherForGroup', x, group);
  return gatherForAll(x, evenly(group, dim, size ?? x.size(dim) * group.size));
}

/**
 * This rank's part along `dim` of the sum of the ranks' tensors: what sumOverGroup() would give,
 * without the rest of it. The second half of sequence parallelism. Throws DS_SHAPE, DS_COMM.
 */
export function sumToParts(x: Tensor, group: ProcessGroup, dim: number): Tensor {
  requireShared('sumToParts', x, group);
  return sumShared(x, evenly(group, dim, x.size(dim)));
}

/** Tensors of which several ranks have the same one, by its number among all. */
export interface Copies {
  group: ProcessGroup;
  /** Which one this rank has. */
  index: number;
  /** How many there are. */
  count: number;
}

/**
 * The tensor itself, of which other ranks of the group have copies: its gradient is the sum of the
 * copies', so that what it was made of has a whole gradient on each of those ranks. All ranks of
 * the group take part. Throws DS_COMM in the backward.
 */
export function copyBesideOthers(x: Tensor, { group, index, count }: Copies): Tensor {
  if (group.size === 1 || !x.requiresGrad || !isGradEnabled()) return x;
  const out = x.alias(x.shape, x.strides);
  record('copy_beside_others', [x], [out], [], ([grad], sink) => {
    scope(() => {
      const { shape, dtype, device } = grad as Tensor;
      const all = Tensor.empty([count, ...shape], dtype, device).zero_();
      const own = all.narrow(0, index, 1).squeeze(0);
      own.copy_(grad as Tensor);
      group.allReduce(all, { purpose: 'copyBesideOthers' }).wait();
      sink.give(0, own);
    });
  });
  return out;
}
