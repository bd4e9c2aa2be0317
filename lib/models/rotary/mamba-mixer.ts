// A state space layer: a layer with a short convolution and a recurrent state.
import type { LayerCache } from '../../nn/attention.js';
import { type Initializer, ones, zeros } from '../../nn/initializers.js';
import { Linear } from '../../nn/linear.js';
import { Module } from '../../nn/module.js';
import { Parameter } from '../../nn/parameter.js';
import { statisticOf } from '../../runtime/dtype.js';
import { leading, required } from '../../runtime/required.js';
import {
  arange,
  clamp,
  concat,
  full,
  noGrad,
  rmsNorm,
  scope,
  shortConv,
  softplus,
  stateSpace,
  swiglu,
  type Tensor,
  ones as unit,
} from '../../tensor/index.js';
import type { AttentionContext } from './attention.js';
import type { BodySizes } from './config.js';
import { ConvWeights } from './delta-net.js';
import { convChannels, type MambaSizes } from './mamba-config.js';

/** The convolution with a bias. */
class BiasedConv extends ConvWeights {
  /** The bias [channels]. */
  readonly bias: Parameter;

  constructor(channels: number, taps: number, deviation: number) {
    super(channels, taps, deviation);
    this.bias = new Parameter([channels], zeros);
  }

  override forward(x: Tensor, documents: Tensor | null, cache: LayerCache | null): Tensor {
    const [C, , K] = leading(this.weight.shape, 3);
    const weight = this.weight.reshape([C, K]);
    if (cache) return required(cache.state).convolve(x, weight, this.bias);
    return shortConv(x, weight, documents, this.bias);
  }
}

/** Logarithms of 1, 2, .. for the heads. Source: transformers' Mamba2Mixer. */
const initialRates: Initializer = (out) => {
  const { device } = out;
  noGrad(() => scope(() => void out.copy_(arange(out.size(0), { start: 1, device }).log())));
};

/**
 * An RMS norm of gated values, or of values before their gates: of all channels, or of each of
 * `groups` groups.
 */
export class GatedNorm extends Module {
  /** The weight [channels]. */
  readonly weight: Parameter;

  /** @internal */
  constructor(
    channels: number,
    private readonly groups: number,
    private readonly eps: number,
    private readonly isBeforeGate = false,
  ) {
    super();
    this.weight = new Parameter([channels], ones);
  }

  /** norm(silu(gate) x), or silu(gate) norm(x), of x and gate [B, T, channels]. */
  override forward(x: Tensor, gate: Tensor): Tensor {
    return this.isBeforeGate ? swiglu(gate, this.normalize(x)) : this.normalize(swiglu(gate, x));
  }

  private normalize(x: Tensor): Tensor {
    const { weight, groups, eps } = this;
    if (groups === 1) return rmsNorm(x, weight, eps);
    const parts = x.reshape([...x.shape.slice(0, -1), groups, -1]);
    const { dtype, device } = x;
    const plain = unit([parts.size(-1)], { dtype, device });
    return rmsNorm(parts, plain, eps).reshape(x.shape).mul(weight);
  }
}

/**
 * A layer with a state S of each head in place of keys and values: S = e^(-dt e^A_log) S + dt B x',
 * and S'C + D x is the result. Source: Dao and Gu 2024; transformers' Mamba2Mixer.
 */
export class MambaMixer extends Module {
  /** Convolution of values, B and C. */
  readonly conv1d: ConvWeights;
  /** From channels to gates, values, B, C and time steps. */
  readonly in_proj: Linear;
  /** Added to time steps, [heads]. */
  readonly dt_bias: Parameter;
  /** Logarithms of the rates of decay, [heads]. */
  readonly A_log: Parameter;
  /** Norm of the gated results; null: none. */
  readonly norm: GatedNorm | null;
  /** Factors of the values in the results, [heads]. */
  readonly D: Parameter;
  /** Maps heads * headDim to channels. */
  readonly out_proj: Linear;
  /** @internal No attention, so that nn.sparsify() leaves it out. */
  readonly sparsity = undefined;
  private readonly sizes: MambaSizes;
  /** Factors of the input, and of gates, values, B, C and time steps; null: 1 each. */
  private readonly factors: readonly [number, ...number[]] | null;

  /** Sizes come from `mamba`, which the family declares. */
  constructor({ channels, traits, mamba, eps, initializerRange, multipliers }: BodySizes) {
    super();
    const sizes = required(mamba);
    const { heads, headDim, groups, taps, bias } = sizes;
    const [inner, conv] = [heads * headDim, convChannels(sizes)];
    this.conv1d = new (sizes.convBias ? BiasedConv : ConvWeights)(conv, taps, initializerRange);
    this.in_proj = new Linear(channels, inner + conv + heads, { bias });
    this.dt_bias = new Parameter([heads], ones);
    this.A_log = new Parameter([heads], initialRates);
    const normGroups = traits.mamba?.normGroups ? groups : 1;
    const isPlain = sizes.norm === 'plain';
    this.norm = sizes.norm === null ? null : new GatedNorm(inner, normGroups, eps, isPlain);
    this.D = new Parameter([heads], ones);
    this.out_proj = new Linear(inner, channels, { bias });
    this.sizes = sizes;
    const { stateIn = 1, stateParts = [] } = multipliers ?? {};
    const factors = [stateIn, ...stateParts] as const;
    this.factors = factors.some((factor) => factor !== 1) ? factors : null;
  }

  /** x [B, T, C]; with a cache, the tokens after the earlier ones. */
  override forward(x: Tensor, { documents }: AttentionContext, cache: LayerCache | null): Tensor {
    const { heads, headDim, groups, stateDim } = this.sizes;
    const [B, T] = leading(x.shape, 2);
    const [inner, shared] = [heads * headDim, groups * stateDim];
    const widths = [inner, inner + 2 * shared, heads];
    const [gate, mixed, steps] = leading(this.project(x).split(widths, 2), 3);
    const convolved = this.conv1d.call(mixed, documents, cache);
    const [entering, b, c] = leading(convolved.split([inner, shared, shared], 2), 3);
    const [asHeads, asGroups] = [
      [B, T, heads, headDim],
      [B, T, groups, stateDim],
    ];
    const wide = statisticOf(x.dtype);
    const step = this.limit(softplus(steps.to(wide).add(this.dt_bias.to(wide))));
    const inputs = {
      x: entering.reshape(asHeads),
      b: b.reshape(asGroups),
      c: c.reshape(asGroups),
      decay: step.mul(this.A_log.to(wide).exp().mul(-1)),
      step,
    };
    const out = cache ? required(cache.state).space(inputs) : stateSpace({ ...inputs, documents });
    const skipped = out.add(inputs.x.mul(this.D.reshape([heads, 1])));
    const values = skipped.reshape([B, T, inner]);
    return this.out_proj.call(this.norm?.call(values, gate) ?? swiglu(gate, values));
  }

  /** Returns the scaled projection [B, T, 2 inner + 2 groups * stateDim + heads]. */
  private project(x: Tensor): Tensor {
    const { factors, in_proj, sizes } = this;
    if (!factors) return in_proj.call(x);
    const { heads, headDim, groups, stateDim } = sizes;
    const [inner, shared] = [heads * headDim, groups * stateDim];
    const options = { dtype: x.dtype, device: x.device };
    const [first, ...others] = factors;
    const widths = [inner, inner, shared, shared, heads];
    return scope(() => {
      const parts = widths.map((width, i) => full([width], others[i] ?? 1, options));
      return in_proj.call(x.mul(first)).mul(concat(parts, 0));
    });
  }

  private limit(step: Tensor): Tensor {
    const [min, max] = this.sizes.stepLimit;
    if (min === 0 && max === null) return step;
    return clamp(step, { min, ...(max !== null && { max }) });
  }
}
