// What ranks of a group exchange of tensors that they share out along a dim: gathering the parts,
// and adding up whole ones so that each rank keeps its part. Not differentiable.
import type { ProcessGroup } from '../comm/index.js';
import { DsError } from '../errors.js';
import * as kernels from '../runtime/kernels.generated.js';
import { describe } from '../runtime/view.js';
import { Tensor } from '../tensor/index.js';

/** How many of `count` things each of `ranks` ranks has: the first ones have one more. */
export function shareOut(count: number, ranks: number): number[] {
  const least = Math.floor(count / ranks);
  const more = count % ranks;
  return Array.from({ length: ranks }, (_, rank) => least + (rank < more ? 1 : 0));
}

/** The first thing of rank `rank` where ranks have `sizes` things each. */
export function startOf(sizes: readonly number[], rank: number): number {
  return sizes.slice(0, rank).reduce((sum, size) => sum + size, 0);
}

/** A dim of tensors that the ranks of a group share out. */
export interface SharedDim {
  group: ProcessGroup;
  /** Which dim; negative ones count from the end. */
  dim: number;
  /** Sizes by rank. */
  sizes: readonly number[];
}

const resized = (x: Tensor, dim: number, size: number): number[] =>
  x.shape.map((length, d) => (d === dim ? size : length));

/** Throws DS_SHAPE unless `x` has `size` in the dim; returns the dim from the start. */
function requireDim(op: string, x: Tensor, { dim, group }: SharedDim, size: number): number {
  const at = dim < 0 ? x.ndim + dim : dim;
  if (x.shape[at] === size) return at;
  throw new DsError({
    code: 'DS_SHAPE',
    op: `${op} over ranks ${group.ranks.join(', ')}`,
    expected: `${size} in dim ${dim} on rank ${group.ranks[group.rank]}`,
    got: describe(x),
  });
}

/** All parts, rank by rank along the dim. Throws DS_SHAPE, DS_COMM. */
export function gatherAlong(op: string, x: Tensor, shared: SharedDim): Tensor {
  const { group, sizes } = shared;
  const own = sizes[group.rank] as number;
  const dim = requireDim(op, x, shared, own);
  const whole = startOf(sizes, sizes.length);
  const out = Tensor.empty(resized(x, dim, whole), x.dtype, x.device);
  const most = Math.max(...sizes);
  const isEven = sizes.every((size) => size === most);
  const isLeading = x.shape.slice(0, dim).every((size) => size === 1);
  if (isEven && isLeading) {
    group.allGather(out, x.contiguous(), { purpose: op }).wait();
    return out;
  }
  const slots = Tensor.empty([group.size, ...resized(x, dim, most)], x.dtype, x.device);
  const slot = (rank: number): Tensor =>
    slots
      .narrow(0, rank, 1)
      .squeeze(0)
      .narrow(dim, 0, sizes[rank] as number);
  const mine = slots.narrow(0, group.rank, 1);
  if (!isEven) kernels.fill({ out: mine, value: 0 });
  kernels.copy({ in: x, out: slot(group.rank) });
  group.allGather(slots, mine, { purpose: op }).wait();
  for (let rank = 0, at = 0; rank < group.size; at += sizes[rank] as number, ++rank) {
    kernels.copy({ in: slot(rank), out: out.narrow(dim, at, sizes[rank] as number) });
  }
  return out;
}

/** This rank's part of the sum of all ranks' tensors. Throws DS_SHAPE, DS_COMM. */
export function sumAlong(op: string, x: Tensor, shared: SharedDim): Tensor {
  const { group, sizes } = shared;
  const dim = requireDim(op, x, shared, startOf(sizes, sizes.length));
  const own = sizes[group.rank] as number;
  const most = Math.max(...sizes);
  const isEven = sizes.every((size) => size === most);
  const isLeading = x.shape.slice(0, dim).every((size) => size === 1);
  const part = Tensor.empty(resized(x, dim, most), x.dtype, x.device);
  if (isEven && isLeading) {
    group.reduceScatter(part, x.contiguous(), { purpose: op }).wait();
    return part;
  }
  const slots = Tensor.empty([group.size, ...part.shape], x.dtype, x.device);
  if (!isEven) kernels.fill({ out: slots, value: 0 });
  for (let rank = 0, at = 0; rank < group.size; at += sizes[rank] as number, ++rank) {
    const size = sizes[rank] as number;
    const slot = slots.narrow(0, rank, 1).squeeze(0).narrow(dim, 0, size);
    kernels.copy({ in: x.narrow(dim, at, size), out: slot });
  }
  group.reduceScatter(part, slots, { purpose: op }).wait();
  return isEven ? part : part.narrow(dim, 0, own).contiguous();
}

/** This rank's part of what every rank has whole, as a copy. Throws DS_SHAPE. */
export function partAlong(op: string, x: Tensor, shared: SharedDim): Tensor {
  const { group, sizes } = shared;
  const dim = requireDim(op, x, shared, startOf(sizes, sizes.length));
  const part = x.narrow(dim, startOf(sizes, group.rank), sizes[group.rank] as number);
  const out = Tensor.empty(part.shape, x.dtype, x.device);
  kernels.copy({ in: part, out });
  return out;
}
