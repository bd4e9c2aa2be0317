// Causal self-attention with one packed projection, and the key/value cache for sampling.

import type { Device } from '../runtime/device.js';
import type { DType } from '../runtime/dtype.js';
import { argumentError } from '../runtime/input-errors.js';
import * as kernels from '../runtime/kernels.generated.js';
import { requireInteger } from '../runtime/require-number.js';
import { leading, required } from '../runtime/required.js';
import {
  attention,
  causalSelfAttentionPacked,
  type DeltaInputs,
  type HeadShare,
  type StateSpaceInputs,
  Tensor,
} from '../tensor/index.js';
import { isInSegment, runProjections } from '../tensor/kept-results.js';
import { keysPerQuery } from '../tensor/ops/attention-filter.js';
import { attendChunks } from './chunked-attention.js';
import { Linear, type LinearOptions } from './linear.js';
import { Module } from './module.js';
import { scoredAttention, WIDEST_HEAD } from './scored-attention.js';
import type { SparsePattern } from './sparse-attention.js';

/** Outputs of the projections, before queries and keys are rotated by their positions. */
export interface UnrotatedHeads {
  /** Queries [B, T, H, D], overwritten. */
  readonly q: Tensor;
  /** Keys [B, T, Hk, D]. */
  readonly k: Tensor;
  /** Values [B, T, Hk, D]. */
  readonly v: Tensor;
  /** Cosines of the angles of positions, [R, D / 2]. */
  readonly cos: Tensor;
  /** Sines of the angles. */
  readonly sin: Tensor;
  /** The row of cos and sin for each token, [B, T] i32. */
  readonly positions: Tensor;
  /** Weights [D] of the norms of query and key heads; null: no norms. */
  readonly norms: { readonly q: Tensor; readonly k: Tensor; readonly eps: number } | null;
}

/** The earlier tokens in a cache that a token sees. */
export interface CacheReach {
  /** Number of nearest tokens; null: all. */
  window: number | null;
  /** Only the tokens of its own chunk of this many tokens; null or absent: all. */
  chunk?: number | null;
  /** Only the tokens of some blocks; null: all. */
  sparsity: SparsePattern | null;
  /** The share of all heads that this call has; null: all. */
  headShare: HeadShare | null;
  /** Factor of the products of queries and keys. Default: 1 / sqrt(D). */
  scale?: number;
  /** Bound of the scores; see attention(). Default: none. */
  scoreCap?: number | null;
  /** Logits [H] of the heads' sinks; see attention(). Default: none. */
  sinks?: Tensor | null;
  /** Slopes [H] of the heads' bias by distance; see attention(). Default: none. */
  alibiSlopes?: Tensor | null;
}

/** Queries, and latents from which the keys and values of all heads follow. */
export interface LatentHeads {
  /** Rotated queries [B, H, T, D]. */
  readonly q: Tensor;
  /** Latents [B, 1, T, W], W even: a cache keeps them instead of keys and values. */
  readonly latent: Tensor;
  /** Returns the keys and values [B, H, S, D] of latents [B, 1, S, W]. */
  expanded(latent: Tensor): { k: Tensor; v: Tensor };
  /**
   * Maps queries [S, H, D] to [S, H, W]. The results times latents equal the queries times keys.
   */
  absorbed(q: Tensor): Tensor;
  /** Returns the values [S, H, D] from weighted sums [S, H, W] of latents. */
  released(sums: Tensor): Tensor;
}

/** The earlier tokens that a fused attention sees, its scale and bound, and the heads' sinks. */
export type RotaryReach = Pick<CacheReach, 'window' | 'scale' | 'scoreCap' | 'sinks'>;

/** The state of one layer with a recurrence. */
export interface RecurrentState {
  /**
   * Returns shortConv() of new tokens x [B, T, C] after the earlier tokens; keeps the last inputs.
   */
  convolve(x: Tensor, weight: Tensor, bias: Tensor | null): Tensor;
  /**
   * Returns gatedDelta() of new tokens after the earlier tokens; keeps the state. convolve() comes
   * first.
   */
  delta(inputs: DeltaInputs): Tensor;
  /** Returns stateSpace() of new tokens, like delta(). */
  space(inputs: StateSpaceInputs): Tensor;
}

/** Keys and values of one layer that later tokens attend to. */
export interface LayerCache {
  /** The state of a layer with a recurrence, which has no keys and values. */
  readonly state?: RecurrentState;

  /**
   * Stores k and v [B, Hk, T, D] of new tokens. Returns the attention [B, H, T, D] of their queries
   * q to the new tokens and the earlier tokens of their sequence, within `reach`. Records nothing
   * on the tape.
   */
  attend(q: Tensor, k: Tensor, v: Tensor, reach: CacheReach): Tensor;

  /**
   * Returns attend() to the tokens that are already stored, including the new tokens; absent if no
   * layer reads the keys and values of another layer.
   */
  attendStored?(q: Tensor, reach: CacheReach): Tensor;

  /**
   * Returns attend() of latents that all heads share; absent if the cache holds keys and values.
   */
  attendLatent?(heads: LatentHeads, scale: number): Tensor;

  /**
   * Returns attend() that also rotates the heads, in one pass; absent if the cache does not support
   * it.
   */
  attendRotary?(heads: UnrotatedHeads, reach: RotaryReach): Tensor;
}

/** The cache of one layer for a batch of sequences of one length. */
export interface SequenceCache extends LayerCache {
  /** Tokens that it holds. */
  length: number;
}

/**
 * Keys and values of a batch of sequences of one length: [B, Hk, capacity, D] each. The scope in
 * which it was made owns it.
 */
export class KeyValueCache implements SequenceCache {
  /** Keys [B, Hk, capacity, D]; the first `length` tokens are valid. */
  readonly keys: Tensor;
  /** Values, in the shape of `keys`. */
  readonly values: Tensor;
  /** Tokens that it holds. */
  length = 0;

  /**
   * Allocates keys and values of `shape`, [B, Hk, capacity, D]. Throws DS_OUT_OF_MEMORY if memory
   * is short.
   */
  constructor(shape: readonly [number, number, number, number], dtype: DType, device: Device) {
    this.keys = Tensor.empty(shape, dtype, device);
    this.values = Tensor.empty(shape, dtype, device);
  }

  attend(q: Tensor, k: Tensor, v: Tensor, reach: CacheReach): Tensor {
    this.append(k, v);
    return this.attendStored(q, reach);
  }

  attendStored(q: Tensor, reach: CacheReach): Tensor {
    const k = this.keys.narrow(2, 0, this.length);
    const v = this.values.narrow(2, 0, this.length);
    const { chunk = null } = reach;
    if (chunk === null || this.length <= chunk) return attendKeys(q, k, v, reach);
    // The pattern counts blocks from the first token, not from the begin of a chunk.
    const mask = reach.sparsity?.mask(q, this.length, reach.headShare) ?? null;
    return attendChunks({ q, k, v }, chunk, (q, k, v, { query, key }) => {
      const seen = mask?.narrow(2, query, q.size(2)).narrow(3, key, k.size(2)) ?? null;
      return attendKeys(q, k, v, reach, seen);
    });
  }

  /** Appends k and v [B, Hk, T, D]. */
  private append(k: Tensor, v: Tensor): void {
    const count = required(k.shape[2]);
    kernels.copy({ in: k, out: this.keys.narrow(2, this.length, count) });
    kernels.copy({ in: v, out: this.values.narrow(2, this.length, count) });
    this.length += count;
  }
}

/**
 * Returns the attention of the last tokens of a sequence to all of its tokens. `mask`: visible
 * pairs, in place of the pattern of `reach`.
 */
function attendKeys(
  q: Tensor,
  keys: Tensor,
  values: Tensor,
  reach: CacheReach,
  mask: Tensor | null = null,
): Tensor {
  const {
    window,
    sparsity,
    headShare,
    scale = 1 / Math.sqrt(q.size(3)),
    scoreCap: cap = null,
    sinks = null,
    alibiSlopes = null,
  } = reach;
  const [T, S] = [q.size(2), keys.size(2)];
  if (q.size(3) > WIDEST_HEAD) return scoredAttention(q, keys, values, { ...reach, scale, cap });
  const options = { causal: true, window, headShare, scale, cap, sinks, alibiSlopes };
  if (!sparsity) return attention(q, keys, values, options);
  if (mask) return attention(q, keys, values, { ...options, mask });
  if (T < S)
    return attention(q, keys, values, { ...options, mask: sparsity.mask(q, S, headShare) });
  const layout = sparsity.layout(headShare?.whole ?? q.size(1), T);
  return attention(q, keys, values, { ...options, layout });
}

/**
 * Causal self-attention. Parameters c_attn [3C, C] (q, k, v concatenated) and c_proj [C, C], as in
 * GPT-2.
 */
export class CausalSelfAttention extends Module {
  /** From channels to queries, keys and values: 3 * channels. */
  readonly c_attn: Linear;
  /** Maps the heads' outputs to channels. */
  readonly c_proj: Linear;
  /** The blocks of tokens that queries see; null: all. See nn.sparsify(). */
  sparsity: SparsePattern | null = null;
  /** @internal The share of the heads if other ranks have the rest. */
  headShare: HeadShare | null = null;
  private readonly headDim: number;

  /** Throws DS_ARGUMENT, also if `channels` is not a multiple of `heads`. */
  constructor(
    channels: number,
    /** Heads, each of channels / heads. */
    readonly heads: number,
    attnOptions: LinearOptions = {},
    projOptions: LinearOptions = {},
  ) {
    super();
    requireInteger('CausalSelfAttention channels', channels, 1);
    requireInteger('CausalSelfAttention heads', heads, 1);
    if (channels % heads !== 0) {
      throw argumentError(
        'CausalSelfAttention channels',
        `a multiple of the ${heads} heads`,
        String(channels),
      );
    }
    this.headDim = channels / heads;
    this.c_attn = new Linear(channels, 3 * channels, attnOptions);
    this.c_proj = new Linear(channels, channels, projOptions);
  }

  /**
   * Maps x [B, T, C] to the same shape. With a cache, x are the tokens after the cached tokens.
   * Without a cache, attention stays inside `documents` [B, T], see attention(). `isRead`: false
   * for an op inside runProjections() that keeps what it computes from the result.
   */
  override forward(
    x: Tensor,
    cache: LayerCache | null = null,
    documents: Tensor | null = null,
    isRead = true,
  ): Tensor {
    const qkv = this.c_attn.call(x);
    // In a split layer these are the heads of this rank.
    const heads = qkv.size(-1) / 3 / this.headDim;
    if (cache) return this.c_proj.call(this.attendCached(qkv, heads, cache));
    const { sparsity, headShare } = this;
    const layout = sparsity?.layout(this.heads, qkv.size(1)) ?? null;
    const mixed = causalSelfAttentionPacked(qkv, heads, { documents, layout, headShare });
    return isInSegment() && this.isPlain
      ? this.runProjections(x, () => this.c_proj.call(mixed), isRead)
      : this.c_proj.call(mixed);
  }

  /**
   * @internal Whether the output projection is a Linear without an adapter, and no hook sees its
   * output.
   */
  get isPlain(): boolean {
    const { c_proj } = this;
    return c_proj.constructor === Linear && !c_proj.isHooked && !this.isHooked;
  }

  /** @internal Runs `body`, projections of this attention of x [B, T, C]: see runProjections(). */
  runProjections<T>(x: Tensor, body: () => T, isRead = true): T {
    const tokens = x.size(1);
    const keys = keysPerQuery({ T: tokens, S: tokens }, { window: 0, causal: true });
    return runProjections({ keys, isRead }, body);
  }

  private attendCached(qkv: Tensor, heads: number, cache: LayerCache): Tensor {
    const [B, T, width] = leading(qkv.shape, 3);
    const [q, k, v] = leading(
      qkv
        .reshape([B, T, 3, heads, this.headDim])
        .permute([2, 0, 3, 1, 4])
        .split(1)
        .map((part) => part.squeeze(0)),
      3,
    );
    return cache
      .attend(q, k, v, { window: null, sparsity: this.sparsity, headShare: this.headShare })
      .transpose(1, 2)
      .reshape([B, T, width / 3]);
  }
}
