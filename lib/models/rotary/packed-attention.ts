// Attention of families with one projection for queries, keys and values.
import { Linear } from '../../nn/linear.js';
import { leading, required } from '../../runtime/required.js';
import { isGradEnabled, type Tensor } from '../../tensor/index.js';
import {
  addHeadNorms,
  type LayerPlace,
  type ProjectedHeads,
  RotaryAttentionBase,
} from './attention.js';
import type { BodySizes } from './config.js';
import { setNamed } from './named-module.js';
import type { Norm } from './norms.js';

/** The attention of Phi, with one projection for queries, keys and values. */
export class PackedAttention extends RotaryAttentionBase {
  /**
   * From channels to (heads + 2 kvHeads) * headDim: queries, keys, values; some families have
   * another name.
   */
  declare readonly qkv_proj: Linear;
  /** From heads * headDim back to channels; some families have another name. */
  declare readonly o_proj: Linear;
  // Assigned after the output projection: the order of fields is the order of parameters.
  declare readonly q_norm: Norm | null;
  declare readonly k_norm: Norm | null;

  /** `body`: sizes of the model. `place`: the index of this layer. */
  constructor(body: BodySizes, place: LayerPlace) {
    super(body, place);
    const { channels, heads, kvHeads, headDim, qkvBias: bias } = body;
    const all = new Linear(channels, (heads + 2 * kvHeads) * headDim, { bias });
    setNamed(this, 'qkv_proj', body.traits.names?.qkv ?? 'qkv_proj', all);
    this.addOutProjection();
    addHeadNorms(this, body, place);
  }

  /** @internal */
  protected override project(x: Tensor): ProjectedHeads {
    const { heads, kvHeads } = this.body;
    const all = this.splitHeads(this.qkv_proj.call(x));
    // In a split layer these are the heads of this rank.
    const keys = all.size(2) / (heads / kvHeads + 2);
    const parts = all.split([all.size(2) - 2 * keys, keys, keys], 2);
    const [q, k, v] = leading(parts, 3);
    // The backward would keep a view of the whole packed tensor, so values are copied.
    return { q, k, v: isGradEnabled() ? v.contiguous() : v };
  }
}

/**
 * The attention of GPT-NeoX and Falcon: one projection has, for each key head in turn, its queries,
 * the key and the value.
 */
export class PerHeadAttention extends RotaryAttentionBase {
  /** Projects the heads back to the channels. */
  declare readonly o_proj: Linear;
  declare readonly q_norm: Norm | null;
  declare readonly k_norm: Norm | null;
  readonly #name: string;

  /** `body`: sizes of the model. `place`: the index of this layer. */
  constructor(body: BodySizes, place: LayerPlace) {
    super(body, place);
    const { channels, heads, kvHeads, headDim, qkvBias: bias, traits } = body;
    this.#name = required(traits.perHead);
    const all = new Linear(channels, (heads + 2 * kvHeads) * headDim, { bias });
    Object.assign(this, { [this.#name]: all });
    this.addOutProjection();
    addHeadNorms(this, body, place);
  }

  /** @internal */
  protected override project(x: Tensor): ProjectedHeads {
    const layer = required((this as unknown as Record<string, Linear>)[this.#name]);
    const [B, T] = [x.size(0), x.size(1)];
    const { heads, kvHeads, headDim } = this.body;
    const group = heads / kvHeads;
    const all = layer.call(x).reshape([B, T, -1, group + 2, headDim]);
    const [queries, keys, values] = leading(all.split([group, 1, 1], 3), 3);
    const q = queries.reshape([B, T, -1, headDim]);
    const [k, v] = [keys.squeeze(3), values.squeeze(3)];
    // The backward would keep a view of the whole tensor, so values are copied.
    return { q, k, v: isGradEnabled() ? v.contiguous() : v };
  }
}
