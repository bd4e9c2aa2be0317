// Multi-head latent attention of DeepSeek: keys and values of all heads follow from one latent.

import type { ProcessGroup } from '../../comm/index.js';
import type { LatentHeads, LayerCache } from '../../nn/attention.js';
import { Linear } from '../../nn/linear.js';
import { RMSNorm } from '../../nn/norms.js';
import { copyToGroup } from '../../parallel/collectives.js';
import { leading, required } from '../../runtime/required.js';
import { concat, pad, type Tensor } from '../../tensor/index.js';
import {
  type AttentionContext,
  type GatedAttention,
  type LayerPlace,
  type ProjectedHeads,
  type RotaryAttention,
  RotaryAttentionBase,
} from './attention.js';
import type { BodySizes, LatentSizes } from './config.js';
import type { LayeredAttention } from './layered-attention.js';
import type { PackedAttention, PerHeadAttention } from './packed-attention.js';

/**
 * Multi-head latent attention. A paged cache holds latents if the weights are plain and whole;
 * otherwise keys and values are expanded from them, and a cache has these. Source: DeepSeek-V2.
 */
export class LatentAttention extends RotaryAttentionBase {
  /** From channels to heads * headDim, without a latent of queries. */
  declare readonly q_proj?: Linear;
  /** Maps channels to the latent of queries. */
  declare readonly q_a_proj?: Linear;
  /** Normalizes the latent of queries. */
  declare readonly q_a_layernorm?: RMSNorm;
  /** From the latent of queries to heads * headDim. */
  declare readonly q_b_proj?: Linear;
  /** From channels to the latent of keys and values, and the rotated channels of keys. */
  readonly kv_a_proj_with_mqa: Linear;
  /** Normalizes the latent of keys and values. */
  readonly kv_a_layernorm: RMSNorm;
  /** From the latent to heads * (plainDim + valueDim). */
  readonly kv_b_proj: Linear;
  /** Maps heads * valueDim to channels. */
  declare readonly o_proj: Linear;
  readonly q_norm = null;
  readonly k_norm = null;
  /** @internal The ranks that share the heads, under tensor parallelism. */
  headGroup: ProcessGroup | null = null;
  private readonly sizes: LatentSizes;

  /** `body.latent` has the ranks of the projections. `place`: the index of this layer. */
  constructor(body: BodySizes, place: LayerPlace) {
    super(body, place);
    const { channels, heads, headDim, qkvBias, outBias: bias } = body;
    const sizes = required(body.latent);
    const { queryRank, keyRank, plainDim, rotaryDim, valueDim } = sizes;
    if (queryRank === null) {
      this.q_proj = new Linear(channels, heads * headDim, { bias: false });
    } else {
      this.q_a_proj = new Linear(channels, queryRank, { bias: qkvBias });
      this.q_a_layernorm = new RMSNorm(queryRank, LATENT_EPS);
      this.q_b_proj = new Linear(queryRank, heads * headDim, { bias: false });
    }
    this.kv_a_proj_with_mqa = new Linear(channels, keyRank + rotaryDim, { bias: qkvBias });
    this.kv_a_layernorm = new RMSNorm(keyRank, LATENT_EPS);
    this.kv_b_proj = new Linear(keyRank, heads * (plainDim + valueDim), { bias: false });
    this.o_proj = new Linear(heads * valueDim, channels, { bias });
    this.sizes = sizes;
  }

  /** @internal Whether a cache of latents serves it: its weights are plain and whole. */
  get absorbs(): boolean {
    return this.kv_b_proj.constructor === Linear && !this.headGroup && !this.sparsity;
  }

  override forward(x: Tensor, context: AttentionContext, cache: LayerCache | null): Tensor {
    if (!cache?.attendLatent) return super.forward(x, context, cache);
    const { q, latent, shared } = this.splitParts(x);
    const turning = this.rotate(shared.unsqueeze(2), null, context);
    const heads: LatentHeads = {
      q: this.rotate(q, null, context, context.queryScales),
      latent: concat([turning, latent.unsqueeze(1)], 3),
      expanded: (all) => this.expandTokens(all),
      absorbed: (some) => this.attendLatents(some),
      released: (sums) => this.expandLatentResult(sums),
    };
    return this.projectOut(cache.attendLatent(heads, this.body.factors.scores), {});
  }

  /** @internal */
  protected override project(x: Tensor): ProjectedHeads {
    const { rotaryDim } = this.sizes;
    const { q, latent, shared } = this.splitParts(x);
    const [B, T, H] = leading(q.shape, 3);
    // The ranks of a tensor-parallel group use it for different heads.
    const turning = this.headGroup ? copyToGroup(shared, this.headGroup) : shared;
    return { q, ...this.expandLatents(latent, turning.unsqueeze(2).expand([B, T, H, rotaryDim])) };
  }

  /**
   * Returns queries [B, T, H, D], the latent [B, T, keyRank] of keys and values, and the key's
   * channels [B, T, rotaryDim] that all heads share. Rotated channels of queries come first: see
   * turned().
   */
  private splitParts(x: Tensor): Record<'q' | 'latent' | 'shared', Tensor> {
    const { keyRank, plainDim, rotaryDim } = this.sizes;
    const queries = this.splitHeads(this.projectQueries(x));
    const q = concat([queries.narrow(3, plainDim, rotaryDim), queries.narrow(3, 0, plainDim)], 3);
    const all = this.kv_a_proj_with_mqa.call(x);
    const latent = this.kv_a_layernorm.call(all.narrow(2, 0, keyRank).contiguous());
    return { q, latent, shared: all.narrow(2, keyRank, rotaryDim).contiguous() };
  }

  /** Expands latents, and the channels that heads share, to keys and values [B, T, H, D]. */
  private expandLatents(latent: Tensor, shared: Tensor): { k: Tensor; v: Tensor } {
    const { plainDim, rotaryDim, valueDim } = this.sizes;
    const [B, T, H] = leading(shared.shape, 3);
    const expanded = this.kv_b_proj.call(latent).reshape([B, T, H, plainDim + valueDim]);
    const k = concat([shared, expanded.narrow(3, 0, plainDim)], 3);
    const v = pad(expanded.narrow(3, plainDim, valueDim), [0, plainDim + rotaryDim - valueDim]);
    return { k, v };
  }

  /** See LatentHeads; `all` has rotated channels, then the latent. */
  private expandTokens(all: Tensor): { k: Tensor; v: Tensor } {
    const { keyRank, rotaryDim } = this.sizes;
    const [B, , S] = leading(all.shape, 3);
    const shared = all.narrow(3, 0, rotaryDim).transpose(1, 2);
    const ofHeads = shared.expand([B, S, this.body.heads, rotaryDim]);
    const latent = all.narrow(3, rotaryDim, keyRank).squeeze(1).contiguous();
    const { k, v } = this.expandLatents(latent, ofHeads);
    return { k: k.transpose(1, 2), v: v.transpose(1, 2) };
  }

  /** Returns the rows of kv_b_proj for keys or for values, [H, width, keyRank]. */
  private selectRows(first: number, width: number): Tensor {
    const { keyRank, plainDim, valueDim } = this.sizes;
    const rows = this.kv_b_proj.weight.reshape([this.body.heads, plainDim + valueDim, keyRank]);
    return rows.narrow(1, first, width);
  }

  private attendLatents(q: Tensor): Tensor {
    const { plainDim, rotaryDim } = this.sizes;
    const plain = q.narrow(2, rotaryDim, plainDim).transpose(0, 1);
    const inLatent = plain.matmul(this.selectRows(0, plainDim)).transpose(0, 1);
    return concat([q.narrow(2, 0, rotaryDim), inLatent], 2);
  }

  private expandLatentResult(sums: Tensor): Tensor {
    const { keyRank, plainDim, rotaryDim, valueDim } = this.sizes;
    const latent = sums.narrow(2, rotaryDim, keyRank).transpose(0, 1);
    const values = latent.matmul(this.selectRows(plainDim, valueDim).transpose(1, 2));
    return pad(values.transpose(0, 1), [0, plainDim + rotaryDim - valueDim]);
  }

  /** @internal */
  protected override selectValues(mixed: Tensor): Tensor {
    return mixed.narrow(3, 0, this.sizes.valueDim);
  }

  private projectQueries(x: Tensor): Tensor {
    const { q_proj, q_a_proj, q_a_layernorm, q_b_proj } = this;
    if (q_proj) return q_proj.call(x);
    return required(q_b_proj).call(required(q_a_layernorm).call(required(q_a_proj).call(x)));
  }
}

/** Epsilon of the norms of latents. */
const LATENT_EPS = 1e-6;

/** The attention of a block. */
export type BlockAttention =
  | RotaryAttention
  | GatedAttention
  | PackedAttention
  | PerHeadAttention
  | LayeredAttention
  | LatentAttention;
