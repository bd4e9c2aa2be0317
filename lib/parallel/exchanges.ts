// Exchanges of tensors that the ranks of a group split along a dim: gathers the parts, or sums
// whole tensors into parts. Not differentiable; collectives.ts adds the gradients.

import type { ProcessGroup, Work } from '../comm/index.js';
import { DsError } from '../errors.js';
import type { Device } from '../runtime/device.js';
import * as kernels from '../runtime/kernels.generated.js';
import { required } from '../runtime/required.js';
import type { Stream } from '../runtime/stream.js';
import { describe, numel } from '../runtime/view.js';
import { Tensor } from '../tensor/index.js';

/** Returns how many of `count` elements each rank gets: the first ranks may get one more. */
export function splitEvenly(count: number, ranks: number): number[] {
  const min = Math.floor(count / ranks);
  const more = count % ranks;
  return Array.from({ length: ranks }, (_, rank) => min + (rank < more ? 1 : 0));
}

/** Returns the index of the first element of `rank`. `sizes`: number of elements of each rank. */
export function startOf(sizes: readonly number[], rank: number): number {
  return sizes.slice(0, rank).reduce((sum, size) => sum + size, 0);
}

/** How a dim of a tensor is split over the ranks of a group. */
export interface SharedDim {
  group: ProcessGroup;
  /** Index of the dim. Negative values count from the end. */
  dim: number;
  /** Sizes of the parts, by rank. */
  sizes: readonly number[];
}

const resize = (x: Tensor, dim: number, size: number): number[] =>
  x.shape.map((length, d) => (d === dim ? size : length));

/**
 * Returns the nonnegative index of the dim. Throws DS_SHAPE unless `x` has `size` elements in it.
 */
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

/** A running exchange. */
export interface Exchange {
  readonly work: Work;
  /** The tensor that the collective writes. It must stay alive until the work is complete. */
  readonly target: Tensor;
  /** Returns the result, which may be `target`. The caller must have waited for `work`. */
  result(): Tensor;
}

/**
 * Selects the stream of a collective. Called after all work that the collective reads is enqueued.
 */
export type StreamChoice = (group: ProcessGroup) => Stream;

const onCompute: StreamChoice = ({ device }) => device.compute;

/**
 * Maximum number of rows that a collective exchanges in place, with one native call per row. If a
 * tensor has more rows, a copy packs them first. On a GPU, the host needs some 30 us for a call,
 * and the GPU copies 26 MB in 15 us.
 */
const maxRows = ({ kind }: Device): number => (kind === 'cpu' ? 16 : 1);

interface Layout {
  /** Index of the split dim. */
  dim: number;
  /** Whether all ranks have parts of the same size. */
  isEven: boolean;
  /** Size in the dim of the largest part. */
  max: number;
  /** Number of contiguous runs in a part: the product of the dims before the split dim. */
  rows: number;
}

function layoutOf(x: Tensor, dim: number, sizes: readonly number[]): Layout {
  const max = Math.max(...sizes);
  const rows = Math.max(1, numel(x.shape.slice(0, dim)));
  return { dim, isEven: sizes.every((size) => size === max), max, rows };
}

/**
 * Returns a view [rows, ranks, elements] of `x`. Each row contains the parts of all ranks.
 */
function viewByRow(x: Tensor, rows: number, ranks: number): Tensor {
  const block = x.numel / (rows * ranks);
  return x.alias([rows, ranks, block], [ranks * block, block, 1], x.offset);
}

/** Returns a view [rows, ranks, elements] of `slots`. Whole parts follow each other. */
function viewBySlot(slots: Tensor, rows: number, ranks: number): Tensor {
  const block = slots.numel / (rows * ranks);
  return slots.alias([rows, ranks, block], [block, rows * block, 1], slots.offset);
}

/** Starts gatherAlong(). */
export function beginGather(
  op: string,
  x: Tensor,
  shared: SharedDim,
  where: StreamChoice = onCompute,
): Exchange {
  const { group, sizes } = shared;
  const ownSize = required(sizes[group.rank]);
  const layout = layoutOf(x, requireDim(op, x, shared, ownSize), sizes);
  const { dim, isEven, max, rows } = layout;
  if (!isEven) return gatherUneven(op, x, shared, layout, where);
  const shape = resize(x, dim, max * group.size);
  const from = x.contiguous();
  if (rows <= maxRows(x.device)) {
    const out = Tensor.empty(shape, x.dtype, x.device);
    const work = group.allGather(out, from, { purpose: op, stream: where(group), rows });
    return { work, target: out, result: () => out };
  }
  const slots = Tensor.empty([group.size, ...x.shape], x.dtype, x.device);
  const work = group.allGather(slots, from, { purpose: op, stream: where(group) });
  const result = (): Tensor => {
    const out = Tensor.empty(shape, slots.dtype, slots.device);
    kernels.copy({
      in: viewBySlot(slots, rows, group.size),
      out: viewByRow(out, rows, group.size),
    });
    return out;
  };
  return { work, target: slots, result };
}

/**
 * Starts a gather of parts of different sizes. Each slot has the size of the largest part, because
 * allGather() requires equal sizes.
 */
function gatherUneven(
  op: string,
  x: Tensor,
  { group, sizes }: SharedDim,
  { dim, max }: Layout,
  where: StreamChoice,
): Exchange {
  const shape = resize(x, dim, startOf(sizes, sizes.length));
  const slots = Tensor.empty([group.size, ...resize(x, dim, max)], x.dtype, x.device);
  const slot = (rank: number): Tensor =>
    slots.narrow(0, rank, 1).squeeze(0).narrow(dim, 0, required(sizes[rank]));
  const ownSlot = slots.narrow(0, group.rank, 1);
  kernels.fill({ out: ownSlot, value: 0 });
  kernels.copy({ in: x, out: slot(group.rank) });
  const work = group.allGather(slots, ownSlot, { purpose: op, stream: where(group) });
  const result = (): Tensor => {
    const out = Tensor.empty(shape, slots.dtype, slots.device);
    for (let rank = 0, at = 0; rank < group.size; at += required(sizes[rank]), ++rank) {
      kernels.copy({ in: slot(rank), out: out.narrow(dim, at, required(sizes[rank])) });
    }
    return out;
  };
  return { work, target: slots, result };
}

/** Starts sumAlong(). */
export function beginSum(
  op: string,
  x: Tensor,
  shared: SharedDim,
  where: StreamChoice = onCompute,
): Exchange {
  const { group, sizes } = shared;
  const { dim, isEven, max, rows } = layoutOf(
    x,
    requireDim(op, x, shared, startOf(sizes, sizes.length)),
    sizes,
  );
  const part = Tensor.empty(resize(x, dim, max), x.dtype, x.device);
  if (isEven && rows <= maxRows(x.device)) {
    const from = x.contiguous();
    const work = group.reduceScatter(part, from, { purpose: op, stream: where(group), rows });
    return { work, target: part, result: () => part };
  }
  const slots = Tensor.empty([group.size, ...part.shape], x.dtype, x.device);
  if (isEven) {
    const from = viewByRow(x.contiguous(), rows, group.size);
    kernels.copy({ in: from, out: viewBySlot(slots, rows, group.size) });
  } else {
    kernels.fill({ out: slots, value: 0 });
    for (let rank = 0, at = 0; rank < group.size; at += required(sizes[rank]), ++rank) {
      const size = required(sizes[rank]);
      const slot = slots.narrow(0, rank, 1).squeeze(0).narrow(dim, 0, size);
      kernels.copy({ in: x.narrow(dim, at, size), out: slot });
    }
  }
  const work = group.reduceScatter(part, slots, { purpose: op, stream: where(group) });
  const ownSize = required(sizes[group.rank]);
  return {
    work,
    target: part,
    result: () => (isEven ? part : part.narrow(dim, 0, ownSize).contiguous()),
  };
}

/** Returns the ranks' parts, concatenated in rank order along the dim. Throws DS_SHAPE, DS_COMM. */
export function gatherAlong(op: string, x: Tensor, shared: SharedDim): Tensor {
  const { work, result } = beginGather(op, x, shared);
  work.wait();
  return result();
}

/** Returns this rank's part of the sum of all ranks' tensors. Throws DS_SHAPE, DS_COMM. */
export function sumAlong(op: string, x: Tensor, shared: SharedDim): Tensor {
  const { work, result } = beginSum(op, x, shared);
  work.wait();
  return result();
}

/**
 * Returns a copy of this rank's part of a tensor that is whole on every rank. Throws DS_SHAPE if
 * the dim has another size.
 */
export function partAlong(op: string, x: Tensor, shared: SharedDim): Tensor {
  const { group, sizes } = shared;
  const dim = requireDim(op, x, shared, startOf(sizes, sizes.length));
  const part = x.narrow(dim, startOf(sizes, group.rank), required(sizes[group.rank]));
  const out = Tensor.empty(part.shape, x.dtype, x.device);
  kernels.copy({ in: part, out });
  return out;
}
