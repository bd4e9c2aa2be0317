// Attention with rotary positions: norms and rotation of projected queries and keys. Projections
// are separate or packed, as in the files.
import type { LayerCache } from '../../nn/attention.js';
import type { RouterLoads } from '../../nn/experts.js';
import { bringTogether, type Joinable, joinedLinear } from '../../nn/joined-linears.js';
import { Linear } from '../../nn/linear.js';
import { Module } from '../../nn/module.js';
import { RMSNorm } from '../../nn/norms.js';
import type { SparsePattern } from '../../nn/sparse-attention.js';
import { attention, type HeadShare, isGradEnabled, rope, type Tensor } from '../../tensor/index.js';
import type { Body, Window } from './config.js';
import type { Angles } from './rotary-table.js';

/** Values that the blocks of one forward share. */
export interface AttentionContext extends Angles {
  /** The rows of cos and sin for the tokens, [B, T]; null: consecutive rows from the first. */
  positions: Tensor | null;
  /** The document of each token, [B, T]; null if each row is one. */
  documents: Tensor | null;
  /** Receives routing statistics; null: not collected. */
  loads: RouterLoads | null;
}

/** Queries, keys and values of tokens, [B, T, heads, headDim] each. */
interface Heads {
  readonly q: Tensor;
  readonly k: Tensor;
  readonly v: Tensor;
}

/** Norms of each head's queries and keys, in families that have them. */
const headNorm = ({ qkNorm, headDim, eps }: Body): RMSNorm | null =>
  qkNorm ? new RMSNorm(headDim, eps) : null;

/** Attention with rotary positions; several query heads share a key and value head. */
abstract class RotaryAttentionBase extends Module {
  /** From heads * headDim back to channels. */
  abstract readonly o_proj: Linear;
  /** The norm of each head's queries before rotation; null if the family has no such norm. */
  abstract readonly q_norm: RMSNorm | null;
  /** Of each head's keys. */
  abstract readonly k_norm: RMSNorm | null;
  /** The blocks of tokens that queries see; null: all. See nn.sparsify(). */
  sparsity: SparsePattern | null = null;
  /** @internal The share of the heads if other ranks have the rest. */
  headShare: HeadShare | null = null;

  /** @internal Blocks make theirs. */
  constructor(
    /** @internal */
    protected readonly body: Body,
    private readonly window: Window,
  ) {
    super();
  }

  /** @internal Of tokens [B, T, C]. */
  protected abstract projected(x: Tensor): Heads;

  /** x [B, T, C], at the positions of `context`; with a cache, the tokens after the cached ones. */
  override forward(x: Tensor, context: AttentionContext, cache: LayerCache | null): Tensor {
    const heads = this.projected(x);
    const mixed = this.fusedWith(cache, heads, context) ?? this.mixed(heads, context, cache);
    const byToken = mixed.transpose(1, 2);
    return this.o_proj.call(byToken.reshape([byToken.size(0), byToken.size(1), -1]));
  }

  /** Norms, rotation, storage and attention by a cache with a fused op; null for other caches. */
  private fusedWith(
    cache: LayerCache | null,
    heads: Heads,
    context: AttentionContext,
  ): Tensor | null {
    const { cos, sin, positions } = context;
    const { rotaryDim, headDim } = this.body;
    if (!cache?.attendTurning || !positions || this.sparsity || rotaryDim < headDim) return null;
    const { q_norm, k_norm, window } = this;
    const norms = q_norm && k_norm && { q: q_norm.weight, k: k_norm.weight, eps: q_norm.eps };
    return cache.attendTurning({ ...heads, cos, sin, positions, norms }, { window });
  }

  private mixed(heads: Heads, context: AttentionContext, cache: LayerCache | null): Tensor {
    const { window, headShare, sparsity } = this;
    const k = this.turned(heads.k, this.k_norm, context);
    const v = heads.v.transpose(1, 2);
    const q = this.turned(heads.q, this.q_norm, context);
    if (cache) return cache.attend(q, k, v, { window, sparsity, headShare });
    return attention(q, k, v, {
      causal: true,
      documents: context.documents,
      window,
      layout: sparsity?.layout(this.body.heads, q.size(2)) ?? null,
      dropout: this.training ? this.body.attentionDropout : 0,
      headShare,
    });
  }

  /** [B, T, heads * headDim] as [B, T, heads, headDim]. */
  protected headsOf(x: Tensor): Tensor {
    return x.reshape([x.size(0), x.size(1), -1, this.body.headDim]);
  }

  private turned(
    heads: Tensor,
    norm: RMSNorm | null,
    { cos, sin, positions }: AttentionContext,
  ): Tensor {
    return rope(norm ? norm.call(heads) : heads, cos, sin, positions).transpose(1, 2);
  }
}

/** The attention of Llama, Mistral and Qwen, with separate projections. */
export class RotaryAttention extends RotaryAttentionBase implements Joinable {
  /** From channels to heads * headDim. */
  readonly q_proj: Linear;
  /** From channels to kvHeads * headDim. */
  readonly k_proj: Linear;
  /** From channels to kvHeads * headDim. */
  readonly v_proj: Linear;
  readonly o_proj: Linear;
  readonly q_norm: RMSNorm | null;
  readonly k_norm: RMSNorm | null;
  private isJoined = false;

  constructor(body: Body, window: Window) {
    super(body, window);
    const { channels, heads, kvHeads, headDim, qkvBias: bias } = body;
    this.q_proj = new Linear(channels, heads * headDim, { bias });
    this.k_proj = new Linear(channels, kvHeads * headDim, { bias });
    this.v_proj = new Linear(channels, kvHeads * headDim, { bias });
    this.o_proj = new Linear(heads * headDim, channels, { bias: body.outBias });
    this.q_norm = headNorm(body);
    this.k_norm = headNorm(body);
  }

  /** @internal See Joinable. */
  joinLinears(): void {
    this.isJoined = bringTogether([this.q_proj, this.k_proj, this.v_proj]);
  }

  /** Queries, keys and values by one product if their weights are joined, else by three. */
  /** @internal */
  protected override projected(x: Tensor): Heads {
    const { q_proj, k_proj, v_proj } = this;
    const layers = [q_proj, k_proj, v_proj];
    const joined = this.isJoined ? joinedLinear(x, layers, this.body.headDim) : null;
    if (joined) {
      const [q, k, v] = joined as [Tensor, Tensor, Tensor];
      return { q, k, v };
    }
    const k = this.headsOf(k_proj.call(x));
    const v = this.headsOf(v_proj.call(x));
    return { q: this.headsOf(q_proj.call(x)), k, v };
  }
}

/** The attention of Phi, with one projection for queries, keys and values. */
export class PackedAttention extends RotaryAttentionBase {
  /** From channels to (heads + 2 kvHeads) * headDim: queries, keys, values. */
  readonly qkv_proj: Linear;
  readonly o_proj: Linear;
  readonly q_norm: RMSNorm | null;
  readonly k_norm: RMSNorm | null;

  constructor(body: Body, window: Window) {
    super(body, window);
    const { channels, heads, kvHeads, headDim, qkvBias: bias } = body;
    this.qkv_proj = new Linear(channels, (heads + 2 * kvHeads) * headDim, { bias });
    this.o_proj = new Linear(heads * headDim, channels, { bias: body.outBias });
    this.q_norm = headNorm(body);
    this.k_norm = headNorm(body);
  }

  /** @internal */
  protected override projected(x: Tensor): Heads {
    const { heads, kvHeads } = this.body;
    const all = this.headsOf(this.qkv_proj.call(x));
    // In a split layer these are the heads of this rank.
    const keys = all.size(2) / (heads / kvHeads + 2);
    const parts = all.split([all.size(2) - 2 * keys, keys, keys], 2);
    const [q, k, v] = parts as [Tensor, Tensor, Tensor];
    // The backward would keep a view of the whole packed tensor, so values are copied.
    return { q, k, v: isGradEnabled() ? v.contiguous() : v };
  }
}
