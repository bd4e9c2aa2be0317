// The norms of blocks by the formula of a family, alone and fused with the addition before them.
import { ones, zeros } from '../../nn/initializers.js';
import { Module } from '../../nn/module.js';
import { LayerNorm, RMSNorm } from '../../nn/norms.js';
import { Parameter } from '../../nn/parameter.js';
import {
  addLayerNorm,
  addRmsNorm,
  layerNorm,
  rmsNorm,
  type Tensor,
  ones as unit,
} from '../../tensor/index.js';
import type { BodySizes } from './config.js';

/**
 * RMSNorm that multiplies by 1 + weight, in f32: 16 bits would lose small weights, also if the
 * product were added to the norm's result. Source: transformers' GemmaRMSNorm.
 */
export class OffsetRMSNorm extends RMSNorm {
  /** The weight [channels] starts at 0. */
  constructor(channels: number, eps: number) {
    super(channels, eps);
    this.weight.initialize(zeros);
  }

  /** Maps [.., channels] to the same shape. */
  override forward(x: Tensor): Tensor {
    const { weight, eps } = this;
    if (isWide(x)) return rmsNorm(x, weight.add(1), eps);
    return rmsNorm(x.to('f32'), weight.to('f32').add(1), eps).to(x.dtype);
  }

  /** @internal [sum, norm(sum)] of sum = x + residual. */
  added(x: Tensor, residual: Tensor): [Tensor, Tensor] {
    if (isWide(x)) return addRmsNorm(x, residual, this.weight.add(1), this.eps);
    const sum = x.add(residual);
    return [sum, this.forward(sum)];
  }
}

const isWide = ({ dtype }: Tensor): boolean => dtype === 'f32' || dtype === 'f64';

/**
 * LayerNorm that multiplies by 1 + weight, rounded to the dtype of the weights. Source:
 * transformers' NemotronLayerNorm1P.
 */
export class OffsetLayerNorm extends LayerNorm {
  /** The weight [channels] starts at 0. */
  constructor(channels: number, eps: number) {
    super(channels, eps);
    this.weight.initialize(zeros);
  }

  /** Maps [.., channels] to the same shape. */
  override forward(x: Tensor): Tensor {
    return layerNorm(x, this.weight.add(1), this.bias, this.eps);
  }

  /** @internal [sum, norm(sum)] of sum = x + residual. */
  added(x: Tensor, residual: Tensor): [Tensor, Tensor] {
    return addLayerNorm(x, residual, this.weight.add(1), this.bias, this.eps);
  }
}

/** LayerNorm with a weight and no bias. Source: transformers' CohereLayerNorm. */
export class PlainLayerNorm extends Module {
  /** The weight [channels]. */
  readonly weight: Parameter;

  /** The weight [channels] starts at 1. */
  constructor(
    channels: number,
    /** Added to the variance. */
    readonly eps: number,
  ) {
    super();
    this.weight = new Parameter([channels], ones);
  }

  /** Maps [.., channels] to the same shape. */
  override forward(x: Tensor): Tensor {
    return layerNorm(x, this.weight, null, this.eps);
  }
}

/** LayerNorm without parameters. Source: transformers' OlmoLayerNorm. */
class BareLayerNorm extends Module {
  constructor(
    private readonly channels: number,
    /** Added to the variance. */
    readonly eps: number,
  ) {
    super();
  }

  /** [.., channels] to the same shape. */
  override forward(x: Tensor): Tensor {
    const weight = unit([this.channels], { dtype: x.dtype, device: x.device });
    return layerNorm(x, weight, null, this.eps);
  }
}

/** RMSNorm without parameters. Source: nanochat. */
export class BareRMSNorm extends Module {
  constructor(
    private readonly channels: number,
    /** Added to the mean of squares. */
    readonly eps: number,
  ) {
    super();
  }

  /** [.., channels] to the same shape. */
  override forward(x: Tensor): Tensor {
    return rmsNorm(x, this.unit(x), this.eps);
  }

  /** @internal [sum, norm(sum)] of sum = x + residual. */
  added(x: Tensor, residual: Tensor): [Tensor, Tensor] {
    return addRmsNorm(x, residual, this.unit(x), this.eps);
  }

  private unit({ dtype, device }: Tensor): Tensor {
    return unit([this.channels], { dtype, device });
  }
}

/** A norm of a block. */
export type Norm = RMSNorm | OffsetRMSNorm | LayerNorm | OffsetLayerNorm | PlainLayerNorm;

/** A norm of a block, also one without parameters. */
export type AnyNorm = Norm | BareLayerNorm | BareRMSNorm;

/** A new norm of `width` channels. */
export function createNorm(
  { traits, eps }: Pick<BodySizes, 'traits' | 'eps'>,
  width: number,
): AnyNorm {
  const { kind = 'rms', offset = false } = traits.norm ?? {};
  if (kind === 'layer') return new (offset ? OffsetLayerNorm : LayerNorm)(width, eps);
  if (kind === 'layerNoBias') return new PlainLayerNorm(width, eps);
  if (kind === 'plain') return new BareLayerNorm(width, eps);
  if (kind === 'bareRms') return new BareRMSNorm(width, eps);
  return offset ? new OffsetRMSNorm(width, eps) : new RMSNorm(width, eps);
}

/** [stream, norm(stream)] of stream = branch + residual, or branch if residual is null. */
export function normalizeSum(
  branch: Tensor,
  residual: Tensor | null,
  norm: AnyNorm,
): [Tensor, Tensor] {
  if (!residual) return [branch, norm.call(branch)];
  if (
    norm instanceof OffsetRMSNorm ||
    norm instanceof OffsetLayerNorm ||
    norm instanceof BareRMSNorm
  ) {
    return norm.added(branch, residual);
  }
  if (norm instanceof BareLayerNorm) {
    const sum = branch.add(residual);
    return [sum, norm.call(sum)];
  }
  const { weight, eps } = norm;
  if (norm instanceof RMSNorm) return addRmsNorm(branch, residual, weight, eps);
  const bias = norm instanceof LayerNorm ? norm.bias : null;
  return addLayerNorm(branch, residual, weight, bias, eps);
}
