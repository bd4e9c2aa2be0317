// Scaled dot-product attention that never stores the score matrix.

import { statisticOf } from '../../runtime/dtype.js';
import { argumentError } from '../../runtime/input-errors.js';
import * as kernels from '../../runtime/kernels.generated.js';
import { namesOf, readOptions } from '../../runtime/options.js';
import { requireFinite, requireInteger } from '../../runtime/require-number.js';
import { leading, required } from '../../runtime/required.js';
import { describe, type View } from '../../runtime/view.js';
import { isBatchInvariant, refuseBatchInvariant } from '../batch-invariant.js';
import type { HeadExchange, HeadShare } from '../head-exchange.js';
import { computeAttention, watchRecorded } from '../kept-results.js';
import { mapToWhole, nextRandom, sharedTokens, sharingTokens } from '../random.js';
import { scope } from '../scope.js';
import { noGrad, record } from '../tape.js';
import { Tensor } from '../tensor.js';
import {
  type AttentionReach,
  type FilterOperands,
  filterOperands,
  type KeyFilter,
  keysPerQuery,
  reachOperands,
} from './attention-filter.js';
import { arange } from './creation.js';
import { where } from './elementwise.js';
import { attendInvariantly } from './invariant-attention.js';
import {
  overwriteOrAdd,
  requireSameType,
  requireTensor,
  shapeError,
  toPackedRows,
  toRowMajor,
  viewOf,
  writeTogether,
} from './shapes.js';

/** Options of attention(). */
export interface AttentionOptions extends KeyFilter {
  /** Query t sees keys s <= t + (S - T): the last query sees all. Default: false. */
  causal?: boolean;
  /** Factor of the scores. Default: 1 / sqrt(D). */
  scale?: number;
  /**
   * A bound above 0: a scaled score s becomes cap * tanh(s / cap), before the masks. Allows bool
   * masks, and neither dropout nor alibiSlopes. Default: none. Source: Gemma 2.
   */
  cap?: number | null;
  /** Fraction of the weights that is dropped, drawn as in dropout(): in [0, 1). Default: 0. */
  dropout?: number;
  /**
   * The share of all heads that this rank has, so that each head drops the weights that it would
   * drop on one rank. Default: all heads.
   */
  headShare?: HeadShare | null;
  /**
   * A logit [H] of each head that joins the softmax and has no value, so the weights add up to less
   * than 1. Default: none. Source: gpt-oss.
   */
  sinks?: Tensor | null;
  /**
   * A slope [H] of each head: key s adds slope * (s - (S - 1)) to the scaled scores, so near keys
   * count more. It has no gradient. Default: none. Source: Press et al. 2022 (ALiBi).
   */
  alibiSlopes?: Tensor | null;
}

export type { HeadShare };

type Drop = kernels.AttentionDropout;

const noDropout: Drop = {
  p: 0,
  seed: 0,
  offset: 0,
  sample: 1,
  rank: 0,
  ranks: 1,
  head: 0,
  heads: 0,
};

/**
 * Returns the dropout parameters of a call of `batch` rows. Advances the random stream unless p is
 * 0.
 */
function drawDropout(p: number, batch: number, share: HeadShare | null): Drop {
  requireFinite('attention dropout', p, 0, 1);
  if (p === 0) return noDropout;
  const { sample, rank, ranks } = mapToWhole({ shape: [batch], numel: batch });
  const { first: head = 0, whole: heads = 0 } = share ?? {};
  return { p, ...nextRandom(), sample, rank, ranks, head, heads };
}

function checkAttention(q: Tensor, k: Tensor, v: Tensor): void {
  requireSameType('attention', q, k);
  requireSameType('attention', q, v);
  const [B, H = 0, , D] = q.shape;
  const [kB, Hk = 0, , kD] = k.shape;
  const match = k.shape.every((n, d) => n === v.shape[d]) && kB === B && kD === D;
  const grouped = H % Hk === 0;
  if (q.ndim !== 4 || k.ndim !== 4 || v.ndim !== 4 || !match || !grouped) {
    throw shapeError(
      'attention',
      'q [B, H, T, D] and k, v [B, Hk, S, D] with H a multiple of Hk',
      `${describe(q)}, ${describe(k)} and ${describe(v)}`,
    );
  }
}

// Operations: products.

/**
 * Returns dropout(softmax(scale q k^T + masks)) v, [B, H, T, D]. q [B, H, T, D]; k and v [B, Hk, S,
 * D]; query head h reads key head h / (H / Hk). The [T, S] scores are never stored, and masks get
 * no gradient. A query that sees no key gives 0 (PyTorch: NaN). The result is a view of [B, T, H,
 * D] memory, so transposing back to [B, T, H * D] is free. In sequence parallelism, q, k and v hold
 * this rank's tokens, and masks all tokens. Throws DS_SHAPE, DS_DTYPE, DS_DEVICE, DS_ARGUMENT,
 * DS_COMM, and DS_AUTOGRAD for a mask that requires a gradient. Source: Dao 2023.
 */
export function attention(q: Tensor, k: Tensor, v: Tensor, options: AttentionOptions = {}): Tensor {
  const exchange = exchangeFor(q, k);
  if (!exchange) return attendLocally(q, k, v, options);
  checkAttention(q, k, v);
  requireHeadlessMask(options.mask);
  const { first = 0, whole } = options.headShare ?? {};
  return exchange.apart([q, k, v], (queries, keys, values, ownShare) => {
    const headShare = { first: first + ownShare.first, whole: whole ?? ownShare.whole };
    const sliceHeads = (all: Tensor | null | undefined): Tensor | null =>
      all?.narrow(0, ownShare.first, queries.size(1)) ?? null;
    const [sinks, alibiSlopes] = [sliceHeads(options.sinks), sliceHeads(options.alibiSlopes)];
    return sharingTokens(null, () =>
      attendLocally(queries, keys, values, { ...options, headShare, sinks, alibiSlopes }),
    );
  });
}

/** Returns the exchange of heads of sequence parallelism; null if this rank has all tokens. */
function exchangeFor(q: Tensor, k: Tensor): HeadExchange | null {
  const share = sharedTokens();
  if (!share?.heads) return null;
  const [queries, keys] = [q.shape[q.ndim - 2], k.shape[k.ndim - 2]];
  if (queries === share.count && keys === share.count) return share.heads;
  throw shapeError(
    'attention with sequence parallelism',
    `queries and keys of this rank's ${share.count} tokens`,
    `${queries} and ${keys}`,
    'Cross-attention needs all tokens: set sequence_parallel_size to 1.',
  );
}

/** Throws DS_ARGUMENT for a mask with heads: a rank has some of the heads, but the mask has all. */
function requireHeadlessMask(mask: Tensor | null | undefined): void {
  if (!(mask instanceof Tensor) || mask.ndim < 3 || mask.shape[mask.ndim - 3] === 1) return;
  throw argumentError(
    'attention mask with sequence parallelism',
    'one mask for all heads, [B, 1, T, T]',
    describe(mask),
  );
}

/** Filter and dropout of a call. */
interface AttentionSettings {
  filter: FilterOperands['views'];
  dropout: Drop;
  scale: number;
  /** 0: none. */
  cap: number;
  causal: boolean;
}

/** Queries, keys and values. */
interface Heads {
  q: View;
  k: View;
  v: View;
}

// The arguments are written out, without spreads: see gemm() in matmul.ts.

function attend({ q, k, v }: Heads, out: View, lse: View, settings: AttentionSettings): void {
  const { filter, dropout, scale, cap, causal } = settings;
  if (isBatchInvariant()) {
    requireInvariantKernel(q, k, settings);
    attendInvariantly({ q, k, v, out, lse, scale, cap, window: filter.window });
    return;
  }
  kernels.attention({
    q,
    k,
    v,
    out,
    lse,
    mask: filter.mask,
    keyMask: filter.keyMask,
    keyLengths: filter.keyLengths,
    queryDocuments: filter.queryDocuments,
    keyDocuments: filter.keyDocuments,
    layout: filter.layout,
    dropout,
    scale,
    cap,
    window: filter.window,
    block: filter.block,
    causal,
  });
}

/** Throws DS_ARGUMENT for an attention that has no batch-invariant kernel. */
function requireInvariantKernel(
  q: View,
  k: View,
  { filter, dropout, causal }: AttentionSettings,
): void {
  const { window: _window, block: _block, ...masks } = filter;
  const isPlain = causal && dropout.p === 0 && Object.values(masks).every((mask) => mask === null);
  if (isPlain && q.shape[2] === k.shape[2]) return;
  const expected = 'causal attention of whole rows, without masks, documents, layout and dropout';
  refuseBatchInvariant('attention', expected, 'another attention');
}

/**
 * The forward's results and their gradient, and the destinations of the gradients of q, k and v.
 */
interface AttentionGradients {
  out: View;
  dout: View;
  lse: View;
  dq: View;
  dk: View;
  dv: View;
}

function attendBackward(
  { q, k, v }: Heads,
  of: AttentionGradients,
  settings: AttentionSettings,
): void {
  const { filter, dropout, scale, cap, causal } = settings;
  kernels.attentionBackward({
    q,
    k,
    v,
    out: of.out,
    dout: of.dout,
    lse: of.lse,
    dq: of.dq,
    dk: of.dk,
    dv: of.dv,
    mask: filter.mask,
    keyMask: filter.keyMask,
    keyLengths: filter.keyLengths,
    queryDocuments: filter.queryDocuments,
    keyDocuments: filter.keyDocuments,
    layout: filter.layout,
    dropout,
    scale,
    cap,
    window: filter.window,
    block: filter.block,
    causal,
  });
}

/** Computes attention() on a rank that has all tokens. */
function attendLocally(q: Tensor, k: Tensor, v: Tensor, options: AttentionOptions): Tensor {
  const read = readOptions('attention', options, namesOf.AttentionOptions);
  const { causal = false, scale: givenScale, dropout = 0, headShare = null, sinks = null } = read;
  checkAttention(q, k, v);
  if (sinks) requireSinks(q, sinks);
  const { alibiSlopes = null } = read;
  const mask = alibiSlopes ? alibiMask(alibiSlopes, q, k, read.mask ?? null) : read.mask;
  const filter = filterOperands(q, k, { ...read, mask: mask ?? null }, headShare);
  const [B, H, T, D] = leading(q.shape, 4);
  const scale = requireFinite('attention scale', givenScale ?? 1 / Math.sqrt(D));
  const cap = requireFinite('attention cap', read.cap ?? 0, 0);
  const views = { q: toPackedRows(q), k: toPackedRows(k), v: toPackedRows(v) };
  const dropoutState = drawDropout(dropout, B, headShare);
  const settings: AttentionSettings = {
    filter: filter.views,
    dropout: dropoutState,
    scale,
    cap,
    causal,
  };
  const keys = keysPerQuery({ T, S: k.size(2) }, { window: filter.views.window, causal });
  const [out, lse] = leading(
    computeAttention({ like: q, keys }, () => {
      const memory = Tensor.empty([B, T, H, D], q.dtype, q.device);
      const fresh = memory.alias([B, H, T, D], [T * H * D, D, H * D, 1]);
      memory.dispose();
      const statistics = Tensor.empty([B, H, T], statisticOf(q.dtype), q.device);
      attend(views, fresh, statistics, settings);
      if (sinks) addSinks(sinks, fresh, statistics);
      return [fresh, statistics];
    }),
    2,
  );
  const saved = [views.q, views.k, views.v, out, lse, ...filter.saved];
  const inputs = sinks ? [q, k, v, sinks] : [q, k, v];
  record('attention', inputs, [out], sinks ? [...saved, sinks] : saved, ([grad], sink) => {
    const dout = toPackedRows(grad);
    if (sinks) {
      const dsinks = sinkGradient(sinks, { out, dout, lse });
      sink.addGrad(3, dsinks);
      dsinks.dispose();
    }
    writeTogether(sink, [0, 1, 2], (outs, adding) => {
      const target = (i: number, like: Tensor): Tensor => {
        const into = outs[i];
        return into && !adding[i] ? into : Tensor.emptyLike(like);
      };
      const [dq, dk, dv] = [target(0, q), target(1, k), target(2, v)];
      attendBackward(views, { out, dout, lse, dq, dk, dv }, settings);
      [dq, dk, dv].forEach((fresh, i) => {
        const into = outs[i];
        if (!into || into === fresh) return;
        kernels.binary({ a: into, b: fresh, out: into, op: 'add', accumulate: false });
      });
    });
  });
  watchRecorded(out);
  return out;
}

/**
 * Returns the bias of the slopes, [1, H, 1, S], plus `mask` if there is one. Throws DS_SHAPE unless
 * each head has a slope.
 */
function alibiMask(slopes: Tensor, q: Tensor, k: Tensor, mask: Tensor | null): Tensor {
  requireTensor('attention alibiSlopes', slopes);
  const [H, S] = [required(q.shape[1]), k.size(2)];
  if (slopes.ndim !== 1 || slopes.shape[0] !== H) {
    const expected = `alibiSlopes [${H}], a slope of each head`;
    throw shapeError('attention', expected, describe(slopes));
  }
  return noGrad(() =>
    scope(() => {
      const dtype = statisticOf(q.dtype);
      const distances = arange(S, { dtype, device: q.device }).sub(S - 1);
      const bias = slopes
        .detach()
        .to(dtype)
        .reshape([1, H, 1, 1])
        .mul(distances.reshape([1, 1, 1, S]));
      if (!mask) return bias;
      return mask.dtype === 'bool' ? where(mask, bias, Number.NEGATIVE_INFINITY) : bias.add(mask);
    }),
  );
}

function requireSinks(q: Tensor, sinks: Tensor): void {
  requireTensor('attention sinks', sinks);
  requireSameType('attention sinks', q, sinks);
  const heads = required(q.shape[1]);
  if (sinks.ndim === 1 && sinks.shape[0] === heads) return;
  throw shapeError('attention', `sinks [${heads}], a logit of each head`, describe(sinks));
}

/**
 * Adds the sinks to the softmax of `out` [B, H, T, D]: with lse' = log(exp(lse) + exp(sink)), out
 * becomes out exp(lse - lse'), and `lse` becomes lse'. The backward of plain attention then holds.
 */
function addSinks(sinks: Tensor, out: Tensor, lse: Tensor): void {
  noGrad(() =>
    scope(() => {
      const z = sinks.detach().to(lse.dtype).reshape([1, -1, 1]);
      const max = lse.maximum(z);
      const lseWithSinks = max.add(lse.sub(max).exp().add(z.sub(max).exp()).log());
      const fraction = lse.sub(lseWithSinks).exp().unsqueeze(3).to(out.dtype);
      kernels.copy({ in: out.mul(fraction), out });
      kernels.copy({ in: lseWithSinks, out: lse });
    }),
  );
}

/** Returns the gradient of the sinks, [H]: -sum of exp(sink - lse) (dout . out) over B and T. */
function sinkGradient(
  sinks: Tensor,
  { out, dout, lse }: { out: Tensor; dout: Tensor; lse: Tensor },
): Tensor {
  return noGrad(() =>
    scope(() => {
      const z = sinks.detach().to(lse.dtype).reshape([1, -1, 1]);
      const inner = out.to(lse.dtype).mul(dout.to(lse.dtype)).sum(3);
      const weighted = z
        .sub(lse)
        .exp()
        .mul(inner)
        .sum({ dims: [0, 2] });
      return weighted.mul(-1).to(sinks.dtype);
    }),
  );
}

/** Returns part `index` (0: q, 1: k, 2: v) of a packed projection [B, T, 3C] as [B, H, T, D]. */
function headsOf(packedQkv: View, index: number, heads: number): View {
  const [B, T, width] = leading(packedQkv.shape, 3);
  const [batchStride, rowStride] = leading(packedQkv.strides, 2);
  const C = width / 3;
  const D = C / heads;
  const strides = [batchStride, D, rowStride, 1];
  return viewOf(packedQkv, [B, heads, T, D], strides, packedQkv.offset + index * C);
}

/** Returns [B, T, C] as a view [B, H, T, D]. */
function splitHeads(x: View, heads: number): View {
  const [B, T, C] = leading(x.shape, 3);
  const D = C / heads;
  return viewOf(x, [B, heads, T, D], [T * C, D, C, 1]);
}

/** Options of causalSelfAttentionPacked(). */
export interface PackedReach extends AttentionReach {
  /** The share of all heads that this call has; null: all. */
  headShare?: HeadShare | null;
}

// Operations: none.

/**
 * Returns causal self-attention from the packed projection qkv [B, T, 3C] (q, k, v concatenated, as
 * in GPT-2) to [B, T, C], without a copy in either direction. Documents and a window are optional.
 * Throws DS_SHAPE, DS_DTYPE or DS_DEVICE if the tensors do not fit together, DS_ARGUMENT for
 * invalid options.
 */
export function causalSelfAttentionPacked(
  qkv: Tensor,
  heads: number,
  reach: PackedReach = {},
): Tensor {
  requireTensor('attention', qkv);
  requireInteger('attention heads', heads, 1);
  if (qkv.ndim !== 3 || required(qkv.shape[2]) % (3 * heads) !== 0) {
    throw shapeError('attention', `qkv [B, T, 3C], C a multiple of ${heads} heads`, describe(qkv));
  }
  const exchange = exchangeFor(qkv, qkv);
  if (!exchange) return attendPackedLocally(qkv, heads, reach);
  const { first = 0, whole = heads } = reach.headShare ?? {};
  return exchange.packed(qkv, heads, (all, own, share) => {
    const headShare = { first: first + share.first, whole };
    return sharingTokens(null, () => attendPackedLocally(all, own, { ...reach, headShare }));
  });
}

/** Computes causalSelfAttentionPacked() on a rank that has all tokens. */
function attendPackedLocally(qkv: Tensor, heads: number, options: PackedReach): Tensor {
  const [B, T, width] = leading(qkv.shape, 3);
  const source = toPackedRows(qkv);
  const C = width / 3;
  const { headShare: share = null, ...reach } = readOptions(
    'attention',
    options,
    namesOf.PackedReach,
  );
  const filter = reachOperands(qkv, { B, T, S: T, heads, share }, reach);
  const scale = 1 / Math.sqrt(C / heads);
  const settings: AttentionSettings = {
    filter: filter.views,
    dropout: noDropout,
    scale,
    cap: 0,
    causal: true,
  };
  const views = {
    q: headsOf(source, 0, heads),
    k: headsOf(source, 1, heads),
    v: headsOf(source, 2, heads),
  };
  const keys = keysPerQuery({ T, S: T }, { window: filter.views.window, causal: true });
  const [out, lse] = leading(
    computeAttention({ like: qkv, keys }, () => {
      const fresh = Tensor.empty([B, T, C], qkv.dtype, qkv.device);
      const statistics = Tensor.empty([B, heads, T], statisticOf(qkv.dtype), qkv.device);
      attend(views, splitHeads(fresh, heads), statistics, settings);
      return [fresh, statistics];
    }),
    2,
  );
  record('attention', [qkv], [out], [source, out, lse, ...filter.saved], ([grad], sink) => {
    const dout = splitHeads(toRowMajor(grad), heads);
    sink.write(0, (into, accumulate) => {
      overwriteOrAdd(into, accumulate, (d) => {
        const [dq, dk, dv] = [headsOf(d, 0, heads), headsOf(d, 1, heads), headsOf(d, 2, heads)];
        attendBackward(views, { out: splitHeads(out, heads), dout, lse, dq, dk, dv }, settings);
      });
    });
  });
  watchRecorded(out);
  return out;
}
