// A gated delta net: a layer with a short convolution and a recurrent state instead of attention.
import type { LayerCache } from '../../nn/attention.js';
import { type Initializer, normal, ones, uniform } from '../../nn/initializers.js';
import { Linear } from '../../nn/linear.js';
import { Module } from '../../nn/module.js';
import { RMSNorm } from '../../nn/norms.js';
import { Parameter } from '../../nn/parameter.js';
import { statisticOf } from '../../runtime/dtype.js';
import { leading, required } from '../../runtime/required.js';
import {
  concat,
  full,
  gatedDelta,
  noGrad,
  rmsNorm,
  scope,
  shortConv,
  sigmoid,
  softplus,
  swiglu,
  type Tensor,
} from '../../tensor/index.js';
import type { AttentionContext } from './attention.js';
import type { BodySizes } from './config.js';
import type { DeltaSizes } from './delta-config.js';

/** The weights of the short convolution, under the name of the files. */
export class ConvWeights extends Module {
  /** The weight [channels, 1, taps]. */
  readonly weight: Parameter;

  /** The weight is [channels, 1, taps]; `deviation` is its first standard deviation. */
  constructor(channels: number, taps: number, deviation: number) {
    super();
    this.weight = new Parameter([channels, 1, taps], normal(deviation));
  }

  /** x [B, T, channels] and the earlier inputs of the cache. */
  override forward(x: Tensor, documents: Tensor | null, cache: LayerCache | null): Tensor {
    const [C, , K] = leading(this.weight.shape, 3);
    const weight = this.weight.reshape([C, K]);
    if (cache) return required(cache.state).convolve(x, weight, null);
    return shortConv(x, weight, documents);
  }
}

/** Logarithms of rates, uniform in [0.01, 16]. Source: transformers' Qwen3NextPreTrainedModel. */
const initialRates: Initializer = (out) => {
  uniform(0.01, 16)(out);
  noGrad(() => scope(() => void out.copy_(out.log())));
};

/** Added to the squared length of queries and keys. */
const LENGTH_EPS = 1e-6;

/** Projected tokens: queries, keys and values [B, T, channels], and what the recurrence needs. */
interface ProjectedTokens {
  readonly qkv: Tensor;
  /** Gates of the results, [B, T, heads, valueDim]. */
  readonly z: Tensor;
  /** [B, T, heads]. */
  readonly b: Tensor;
  /** [B, T, heads]. */
  readonly a: Tensor;
}

/**
 * A layer with a recurrent state in place of keys and values. Source: Yang, Kautz and Hatamizadeh
 * 2025; transformers' Qwen3NextGatedDeltaNet.
 */
export class GatedDeltaNet extends Module {
  /** Convolution of queries, keys and values. */
  readonly conv1d: ConvWeights;
  /** From channels to queries, keys, values and gates, in families that join them. */
  declare readonly in_proj_qkvz?: Linear;
  /** From channels to the steps and decays of value heads, in families that join them. */
  declare readonly in_proj_ba?: Linear;
  /** Maps channels to queries, keys and values. */
  declare readonly in_proj_qkv?: Linear;
  /** Maps channels to the gates of the results. */
  declare readonly in_proj_z?: Linear;
  /** Maps channels to the steps of value heads. */
  declare readonly in_proj_b?: Linear;
  /** Maps channels to the decays of value heads. */
  declare readonly in_proj_a?: Linear;
  /** Added to decays, [heads]. */
  readonly dt_bias: Parameter;
  /** Logarithms of the rates of decay, [heads]. */
  readonly A_log: Parameter;
  /** Norm of each head's result, before its gate. */
  readonly norm: RMSNorm;
  /** Maps heads * valueDim to channels. */
  readonly out_proj: Linear;
  /** @internal No attention, so that nn.sparsify() leaves it out. */
  readonly sparsity = undefined;
  private readonly sizes: DeltaSizes;

  /** Sizes come from `delta`, which the family declares. */
  constructor({ channels, traits, delta, eps, initializerRange }: BodySizes) {
    super();
    const sizes = required(delta);
    const { keyHeads, heads, keyDim, valueDim, taps } = sizes;
    const [keys, values] = [keyHeads * keyDim, heads * valueDim];
    const linear = (to: number): Linear => new Linear(channels, to, { bias: false });
    this.conv1d = new ConvWeights(2 * keys + values, taps, initializerRange);
    if (traits.delta?.joined) {
      this.in_proj_qkvz = linear(2 * keys + 2 * values);
      this.in_proj_ba = linear(2 * heads);
    } else {
      this.in_proj_qkv = linear(2 * keys + values);
      this.in_proj_z = linear(values);
      this.in_proj_b = linear(heads);
      this.in_proj_a = linear(heads);
    }
    this.dt_bias = new Parameter([heads], ones);
    this.A_log = new Parameter([heads], initialRates);
    this.norm = new RMSNorm(valueDim, eps);
    this.out_proj = new Linear(values, channels, { bias: false });
    this.sizes = sizes;
  }

  /** x [B, T, C]; with a cache, the tokens after the earlier ones. */
  override forward(x: Tensor, { documents }: AttentionContext, cache: LayerCache | null): Tensor {
    const { keyHeads, heads, keyDim, valueDim } = this.sizes;
    const [B, T] = leading(x.shape, 2);
    const { qkv, z, b, a } = this.project(x);
    const mixed = this.conv1d.call(qkv, documents, cache);
    const keys = keyHeads * keyDim;
    const part = (at: number, count: number, width: number): Tensor =>
      mixed.narrow(2, at, count * width).reshape([B, T, count, width]);
    const wide = statisticOf(x.dtype);
    const rates = this.A_log.to(wide).exp().mul(-1);
    const inputs = {
      q: scaleToLength(part(0, keyHeads, keyDim), 1 / Math.sqrt(keyDim)),
      k: scaleToLength(part(keys, keyHeads, keyDim), 1),
      v: part(2 * keys, heads, valueDim),
      decay: softplus(a.to(wide).add(this.dt_bias.to(wide))).mul(rates),
      beta: sigmoid(b.to(wide)),
    };
    const out = cache ? required(cache.state).delta(inputs) : gatedDelta({ ...inputs, documents });
    const gated = swiglu(z, this.norm.call(out));
    return this.out_proj.call(gated.reshape([B, T, heads * valueDim]));
  }

  private project(x: Tensor): ProjectedTokens {
    const { keyHeads, heads, keyDim, valueDim } = this.sizes;
    const [B, T] = leading(x.shape, 2);
    const { in_proj_qkvz, in_proj_ba, in_proj_qkv, in_proj_z, in_proj_b, in_proj_a } = this;
    if (!in_proj_qkvz || !in_proj_ba) {
      return {
        qkv: required(in_proj_qkv).call(x),
        z: required(in_proj_z).call(x).reshape([B, T, heads, valueDim]),
        b: required(in_proj_b).call(x),
        a: required(in_proj_a).call(x),
      };
    }
    const group = heads / keyHeads;
    const all = in_proj_qkvz.call(x).reshape([B, T, keyHeads, -1]);
    const widths = [keyDim, keyDim, group * valueDim, group * valueDim];
    const [q, k, v, z] = leading(all.split(widths, 3), 4);
    const flat = (tensor: Tensor): Tensor => tensor.reshape([B, T, -1]);
    const both = in_proj_ba.call(x).reshape([B, T, keyHeads, 2 * group]);
    const [b, a] = leading(both.split(group, 3), 2);
    return {
      qkv: concat([q, k, v].map(flat), 2),
      z: z.reshape([B, T, heads, valueDim]),
      b: flat(b),
      a: flat(a),
    };
  }
}

/** Heads [.., D] scaled to `length`, by an RMSNorm with a constant weight. */
function scaleToLength(heads: Tensor, length: number): Tensor {
  const D = heads.size(-1);
  const { dtype, device } = heads;
  const weight = full([D], length / Math.sqrt(D), { dtype, device });
  return rmsNorm(heads, weight, LENGTH_EPS / D);
}
