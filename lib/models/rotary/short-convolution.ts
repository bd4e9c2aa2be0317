// A short causal convolution between two gates: a layer in place of attention.
import type { LayerCache } from '../../nn/attention.js';
import { Linear } from '../../nn/linear.js';
import { Module } from '../../nn/module.js';
import { leading, required } from '../../runtime/required.js';
import { concat, shortConv, type Tensor } from '../../tensor/index.js';
import type { AttentionContext } from './attention.js';
import type { BodySizes } from './config.js';
import { ConvWeights } from './delta-net.js';

/**
 * The convolution of each channel without an activation. The ops apply SiLU, and
 * silu(z) - silu(-z) = z: both terms have the sign of z, so nothing cancels.
 */
class PlainConv extends ConvWeights {
  override forward(x: Tensor, documents: Tensor | null, cache: LayerCache | null): Tensor {
    const [C, , K] = leading(this.weight.shape, 3);
    const weight = this.weight.reshape([C, K]);
    const negative = weight.mul(-1);
    if (!cache) return shortConv(x, weight, documents).sub(shortConv(x, negative, documents));
    // The state changes with each call, so one call has both halves.
    const weights = concat([weight, negative], 0);
    const both = required(cache.state).convolve(concat([x, x], 2), weights, null);
    const [first, second] = leading(both.split(C, 2), 2);
    return first.sub(second);
  }
}

/**
 * out_proj(c * conv(b * x)), where in_proj gives b, c and x. Source: Liquid AI 2025; transformers'
 * Lfm2ShortConv.
 */
export class ShortConvolution extends Module {
  /** The convolution of each channel. */
  readonly conv: ConvWeights;
  /** From channels to both gates and the values. */
  readonly in_proj: Linear;
  /** Maps channels to channels. */
  readonly out_proj: Linear;
  /** @internal No attention, so that nn.sparsify() leaves it out. */
  readonly sparsity = undefined;

  /** Sizes come from `conv`, which the family declares. */
  constructor({ channels, conv, initializerRange }: BodySizes) {
    super();
    this.conv = new PlainConv(channels, required(conv).taps, initializerRange);
    this.in_proj = new Linear(channels, 3 * channels, { bias: false });
    this.out_proj = new Linear(channels, channels, { bias: false });
  }

  /** x [B, T, C]; with a cache, the tokens after the earlier ones. */
  override forward(x: Tensor, { documents }: AttentionContext, cache: LayerCache | null): Tensor {
    const parts = this.in_proj.call(x).split(x.size(-1), 2);
    const [before, after, values] = leading(parts, 3);
    return this.out_proj.call(after.mul(this.conv.call(before.mul(values), documents, cache)));
  }
}
