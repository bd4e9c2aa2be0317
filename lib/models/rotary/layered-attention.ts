// The attention of Gemma 4: values are normalized, and some layers read the keys and values of
// earlier ones.
import type { LayerCache } from '../../nn/attention.js';
import { Linear } from '../../nn/linear.js';
import { required } from '../../runtime/required.js';
import { ones, rmsNorm, type Tensor } from '../../tensor/index.js';
import { shareCasts } from '../../tensor/ops/fp8-linear.js';
import {
  type AttentionContext,
  createHeadNorm,
  type LayerPlace,
  type ProjectedHeads,
  RotaryAttentionBase,
} from './attention.js';
import type { BodySizes } from './config.js';
import { findSource } from './layer-kinds.js';
import type { Norm } from './norms.js';

/** The attention of Gemma 4. Without a cache, AttentionContext.shared passes keys and values on. */
export class LayeredAttention extends RotaryAttentionBase {
  /** Maps channels to heads * headDim. */
  readonly q_proj: Linear;
  /** From channels to kvHeads * headDim; absent in layers that read those of another. */
  declare readonly k_proj?: Linear;
  /** From channels to kvHeads * headDim; also absent if values are the projected keys. */
  declare readonly v_proj?: Linear;
  /** Maps heads * headDim back to channels. */
  declare readonly o_proj: Linear;
  declare readonly q_norm: Norm | null;
  declare readonly k_norm: Norm | null;
  /** The layer with its keys and values; null: this one. */
  private readonly source: number | null;
  /** Whether later layers read its keys and values. */
  private readonly isRead: boolean;
  private readonly index: number;

  /** `body` has the sizes of this layer. */
  constructor(body: BodySizes, place: LayerPlace) {
    super(body, place);
    const { channels, heads, kvHeads, headDim, qkvBias: bias, full, isFull } = body;
    const { layer } = place;
    this.index = layer;
    this.source = findSource(body, layer);
    this.isRead = isFull.some((_, other) => findSource(body, other) === layer);
    const isOwn = this.source === null;
    const hasValues = isOwn && !(isFull[layer] && full?.keysAsValues);
    this.q_proj = new Linear(channels, heads * headDim, { bias });
    if (isOwn) this.k_proj = new Linear(channels, kvHeads * headDim, { bias });
    if (hasValues) this.v_proj = new Linear(channels, kvHeads * headDim, { bias });
    this.addOutProjection();
    this.q_norm = createHeadNorm(body, heads);
    this.k_norm = isOwn ? createHeadNorm(body, kvHeads) : null;
  }

  /** Attends by its own keys and values, or by those of its source. */
  override forward(x: Tensor, context: AttentionContext, cache: LayerCache | null): Tensor {
    if (this.source === null) return super.forward(x, context, cache);
    const q = this.rotate(this.splitHeads(this.q_proj.call(x)), this.q_norm, context);
    const keys = cache ? null : required(context.shared?.get(this.source));
    return this.projectOut(this.attend(q, keys, context, cache), {});
  }

  /** @internal Also passes the keys and values on to later layers. */
  protected override attend(
    q: Tensor,
    keys: Pick<ProjectedHeads, 'k' | 'v'> | null,
    context: AttentionContext,
    cache: LayerCache | null,
  ): Tensor {
    if (this.isRead && keys && !cache) required(context.shared).set(this.index, keys);
    return super.attend(q, keys, context, cache);
  }

  /** @internal Values are the projected keys before their norm, or a projection of their own. */
  protected override project(x: Tensor): ProjectedHeads {
    return shareCasts(x, () => {
      const k = this.splitHeads(required(this.k_proj).call(x));
      const v = this.v_proj ? this.splitHeads(this.v_proj.call(x)) : k;
      const unit = ones([this.body.headDim], { dtype: v.dtype, device: v.device });
      const values = rmsNorm(v, unit, this.body.eps);
      return { q: this.splitHeads(this.q_proj.call(x)), k, v: values };
    });
  }
}
