// The all-to-all exchanges around attention in Ulysses sequence parallelism. Before attention, each
// rank exchanges some tokens of all heads for all tokens of some heads; after it, the reverse.
// Source: Jacobs et al. 2023 (DeepSpeed-Ulysses).

import type { ProcessGroup } from '../comm/index.js';
import * as kernels from '../runtime/kernels.generated.js';
import { leading, required } from '../runtime/required.js';
import {
  type HeadExchange,
  type HeadShare,
  noGrad,
  record,
  scope,
  Tensor,
} from '../tensor/index.js';
import { type Range, splitHeads } from './rank-ranges.js';

/** Which rank computes which heads. Several tensors (q, k, v) go through one exchange. */
interface Route {
  group: ProcessGroup;
  /** Range of heads of each tensor, by tensor and rank. Several ranks may have the same heads. */
  heads: readonly (readonly Range[])[];
}

const headsOf = ({ heads }: Route, rank: number): Range[] =>
  heads.map((ranges) => required(ranges[rank]));

const widthOf = (route: Route, rank: number): number =>
  headsOf(route, rank).reduce((sum, { count }) => sum + count, 0);

/**
 * Returns the number of heads per slot: the largest number of any rank, because slots are equal.
 */
const maxOf = (route: Route): number =>
  Math.max(...route.group.ranks.map((_, rank) => widthOf(route, rank)));

/** Views [.., B, t, ..] as [.., t, B, ..] and the reverse. */
const swap = (x: Tensor): Tensor => x.transpose(0, 1);

/**
 * Allocates one slot per rank: [n, t, B, heads, D]. n: ranks; t: tokens of a rank. Heads that a
 * slot does not use are 0.
 */
function allocateSlots(route: Route, like: Tensor, tokens: number): Tensor {
  const [B, , , D] = leading(like.shape, 4);
  const { size } = route.group;
  const shape = [size, tokens / size, B, maxOf(route), D];
  const slots = Tensor.empty(shape, like.dtype, like.device);
  const isEven = route.group.ranks.every((_, rank) => widthOf(route, rank) === maxOf(route));
  if (!isEven) kernels.fill({ out: slots, value: 0 });
  return slots;
}

const slotOf = (slots: Tensor, rank: number): Tensor => slots.narrow(0, rank, 1).squeeze(0);

/**
 * Exchanges tokens for heads. The tensors xs[i] [B, T / n, H_i, D] have this rank's tokens of all
 * heads. The result [T, B, W, D] has all tokens of this rank's heads: the heads of each tensor one
 * after the other, then padding.
 */
function toHeads(purpose: string, xs: readonly Tensor[], route: Route): Tensor {
  const { group } = route;
  const [first] = leading(xs, 1);
  const tokens = first.size(1) * group.size;
  const sendSlots = allocateSlots(route, first, tokens);
  for (const rank of group.ranks.keys()) {
    let at = 0;
    headsOf(route, rank).forEach((range, i) => {
      const from = required(xs[i]).narrow(2, range.first, range.count);
      const out = slotOf(sendSlots, rank).narrow(2, at, range.count);
      kernels.copy({ in: swap(from), out });
      at += range.count;
    });
  }
  const got = Tensor.empty(sendSlots.shape, sendSlots.dtype, sendSlots.device);
  group.allToAll(got, sendSlots, { purpose }).wait();
  return got.reshape([tokens, ...sendSlots.shape.slice(2)]);
}

/**
 * Exchanges heads for tokens, the inverse and the gradient of toHeads(). ys[i] [B, T, h_i, D] have
 * all tokens of this rank's heads. Writes `outs[i]` [B, T / n, H_i, D], this rank's tokens of all
 * heads. Heads that several ranks have are summed.
 */
function toTokens(
  purpose: string,
  ys: readonly Tensor[],
  outs: readonly Tensor[],
  route: Route,
): void {
  const { group } = route;
  const [first] = leading(ys, 1);
  const tokens = first.size(1);
  const sendSlots = allocateSlots(route, first, tokens);
  const all = sendSlots.reshape([tokens, ...sendSlots.shape.slice(2)]);
  let at = 0;
  for (const y of ys) {
    kernels.copy({ in: swap(y), out: all.narrow(2, at, y.size(2)) });
    at += y.size(2);
  }
  const got = Tensor.empty(sendSlots.shape, sendSlots.dtype, sendSlots.device);
  group.allToAll(got, sendSlots, { purpose }).wait();
  const seen = outs.map(() => new Set<number>());
  for (const rank of group.ranks.keys()) {
    let from = 0;
    headsOf(route, rank).forEach(({ first: head, count }, i) => {
      const part = swap(slotOf(got, rank).narrow(2, from, count));
      const out = required(outs[i]).narrow(2, head, count);
      if (seen[i]?.has(head)) {
        kernels.binary({ a: out, b: part, out, op: 'add', accumulate: false });
      } else kernels.copy({ in: part, out });
      seen[i]?.add(head);
      from += count;
    });
  }
}

/** Returns views [B, T, h_i, D] of this rank's heads of each tensor in the result of toHeads(). */
function viewsOf(all: Tensor, route: Route): Tensor[] {
  const [T, B, width, D] = leading(all.shape, 4);
  let at = 0;
  return headsOf(route, route.group.rank).map(({ count }) => {
    const from = all.offset + at * D;
    at += count;
    return all.alias([B, T, count, D], [width * D, B * width * D, D, 1], from);
  });
}

/** Allocates [B, tokens, heads, D] with the dtype and device of `like` [B, .., .., D]. */
const emptyHeads = (like: Tensor, tokens: number, heads: number): Tensor => {
  const [B, , , D] = leading(like.shape, 4);
  return Tensor.empty([B, tokens, heads, D], like.dtype, like.device);
};

/** Views [B, T, H, D] as [B, H, T, D] and the reverse, without recording a gradient. */
const byHead = (x: Tensor): Tensor =>
  x.alias(
    [0, 2, 1, 3].map((d) => required(x.shape[d])),
    [0, 2, 1, 3].map((d) => required(x.strides[d])),
  );

/**
 * Runs attention over the ranks of a group. Each rank has the same number of tokens of every
 * sample, in rank order. The heads may be split unevenly. If there are fewer key and value heads
 * than ranks, several ranks have the same ones, as in DeepSpeed. Throws DS_ARGUMENT if there are
 * more ranks than query heads, DS_COMM.
 */
export class Ulysses implements HeadExchange {
  constructor(private readonly group: ProcessGroup) {}

  apart(
    [q, k, v]: readonly [q: Tensor, k: Tensor, v: Tensor],
    attend: Parameters<HeadExchange['apart']>[1],
  ): Tensor {
    const { group } = this;
    const counts = { queries: q.size(1), keys: k.size(1) };
    const shared = splitHeads(counts, group, OP);
    const route = { group, heads: [shared.queries, shared.keys, shared.keys] };
    const inputs = [q, k, v];
    const outs = noGrad(() => {
      const all = toHeads('queries, keys and values', inputs.map(byHead), route);
      return viewsOf(all, route).map(byHead);
    });
    record('tokens_to_heads', inputs, outs, [], (grads, sink) => {
      scope(() => {
        const some = byHead(required(grads.find((grad) => grad !== null)));
        const zeros = (i: number): Tensor => {
          const { count } = required(headsOf(route, group.rank)[i]);
          const out = emptyHeads(some, some.size(1), count);
          kernels.fill({ out, value: 0 });
          return out;
        };
        const parts = grads.map((grad, i) => (grad ? byHead(grad) : zeros(i)));
        const tokens = some.size(1) / group.size;
        const into = inputs.map((x) => emptyHeads(some, tokens, required(x.shape[1])));
        toTokens('gradients of queries, keys and values', parts, into, route);
        into.forEach((grad, i) => {
          sink.addGrad(i, byHead(grad));
        });
      });
    });
    const [queries, keys, values] = leading(outs, 3);
    const { first } = required(shared.queries[group.rank]);
    const mixed = attend(queries, keys, values, { first, whole: counts.queries });
    const ownTensor = this.ofTokens(mixed.transpose(1, 2), shared.queries, counts.queries);
    return ownTensor.transpose(1, 2);
  }

  packed(
    qkv: Tensor,
    heads: number,
    attend: (qkv: Tensor, heads: number, share: HeadShare) => Tensor,
  ): Tensor {
    const { group } = this;
    const { queries: ownRanges } = splitHeads({ queries: heads, keys: heads }, group, OP);
    const route = { group, heads: [ownRanges, ownRanges, ownRanges] };
    const [B, t, width] = leading(qkv.shape, 3);
    const D = width / (3 * heads);
    const thirds = (x: Tensor, count: number): Tensor[] =>
      [0, 1, 2].map((i) => {
        const [batch = 0, row = 0] = x.strides;
        const shape = [B, required(x.shape[1]), count, D];
        return x.alias(shape, [batch, row, D, 1], x.offset + i * count * D);
      });
    const { first, count } = required(ownRanges[group.rank]);
    const out = noGrad(() => {
      const all = toHeads('queries, keys and values', thirds(rowsPacked(qkv), heads), route);
      const [T, , max] = leading(all.shape, 3);
      return all.alias([B, T, 3 * count * D], [max * D, B * max * D, 1], all.offset);
    });
    record('tokens_to_heads', [qkv], [out], [], ([grad], sink) => {
      scope(() => {
        const all = rowsPacked(grad);
        const into = Tensor.empty([B, t, width], all.dtype, all.device);
        const parts = thirds(all, count);
        toTokens('gradients of queries, keys and values', parts, thirds(into, heads), route);
        sink.addGrad(0, into);
      });
    });
    const mixed = attend(out, count, { first, whole: heads });
    const T = mixed.size(1);
    const output = this.ofTokens(mixed.reshape([B, T, count, D]), ownRanges, heads);
    return output.reshape([B, t, heads * D]);
  }

  /**
   * Exchanges the attention output [B, T, h, D] of this rank's heads for that of all heads at this
   * rank's tokens, [B, t, H, D].
   */
  private ofTokens(x: Tensor, ownRanges: readonly Range[], heads: number): Tensor {
    const route = { group: this.group, heads: [ownRanges] };
    const tokens = x.size(1) / this.group.size;
    const out = noGrad(() => {
      const into = emptyHeads(x, tokens, heads);
      scope(() => toTokens('attention outputs', [x], [into], route));
      return into;
    });
    record('heads_to_tokens', [x], [out], [], ([grad], sink) => {
      scope(() => {
        const all = toHeads('gradients of heads', [grad], route);
        sink.addGrad(0, required(viewsOf(all, route)[0]));
      });
    });
    return out;
  }
}

const OP = 'sequence_parallel_size';

/** Returns `x` itself if the elements of each row are contiguous, else a contiguous copy. */
const rowsPacked = (x: Tensor): Tensor => (x.strides.at(-1) === 1 ? x : x.contiguous());
