// Normalization of each row (LayerNorm, RMSNorm), and of groups of channels.

import { DsError } from '../errors.js';
import { argumentError } from '../runtime/input-errors.js';
import { namesOf, readOptions } from '../runtime/options.js';
import { requireFinite, requireInteger } from '../runtime/require-number.js';
import { describe, numel } from '../runtime/view.js';
import { ones as constantOnes, layerNorm, rmsNorm, scope, type Tensor } from '../tensor/index.js';
import { requireTensor } from '../tensor/ops/shapes.js';
import { ones, zeros } from './initializers.js';
import { Module } from './module.js';
import { Parameter } from './parameter.js';

/** Normalizes the last dim to mean 0 and variance 1, then applies weight and bias [C]. */
export class LayerNorm extends Module {
  /** The weight [channels]. */
  readonly weight: Parameter;
  /** The bias [channels]. */
  readonly bias: Parameter;

  /** Throws DS_ARGUMENT unless `channels` is an integer from 1 and `eps` at least 0. */
  constructor(
    channels: number,
    /** Added to the variance. */
    readonly eps = 1e-5,
  ) {
    super();
    requireInteger('LayerNorm channels', channels, 1);
    requireFinite('LayerNorm eps', eps, 0);
    this.weight = new Parameter([channels], ones);
    this.bias = new Parameter([channels], zeros);
  }

  /**
   * Maps [..., channels] to the same shape, each row with mean 0 and variance 1 before weight and
   * bias.
   */
  override forward(x: Tensor): Tensor {
    return layerNorm(x, this.weight, this.bias, this.eps);
  }
}

/** Normalizes the last dim to root mean square 1, then applies weight [C]. */
export class RMSNorm extends Module {
  /** The weight [channels]. */
  readonly weight: Parameter;

  /** Throws DS_ARGUMENT unless `channels` is an integer from 1 and `eps` at least 0. */
  constructor(
    channels: number,
    /** Added to the mean square. */
    readonly eps = 1e-5,
  ) {
    super();
    requireInteger('RMSNorm channels', channels, 1);
    requireFinite('RMSNorm eps', eps, 0);
    this.weight = new Parameter([channels], ones);
  }

  /** Maps [..., channels] to the same shape, each row divided by its root mean square. */
  override forward(x: Tensor): Tensor {
    return rmsNorm(x, this.weight, this.eps);
  }
}

/** Options of GroupNorm. */
export interface GroupNormOptions {
  /** Added to the variance. Default: 1e-5. */
  eps?: number;
  /** Whether there is a weight and a bias [C]. Default: true. */
  affine?: boolean;
}

/**
 * Normalizes each sample's channels in `groups`, with all later dims, then applies weight and bias
 * [C]. x [N, C, ..]. Source: Wu & He 2018.
 */
export class GroupNorm extends Module {
  /** The weight [channels]; null without affine. */
  readonly weight: Parameter | null;
  /** The bias [channels]; null without affine. */
  readonly bias: Parameter | null;
  /** Added to the variance. */
  readonly eps: number;

  /** Throws DS_ARGUMENT, also if groups do not divide the channels. */
  constructor(
    /** Groups of channels that share a mean and a variance. */
    readonly groups: number,
    /** Channels of the input. */
    readonly channels: number,
    given: GroupNormOptions = {},
  ) {
    super();
    const { eps = 1e-5, affine = true } = readOptions('GroupNorm', given, namesOf.GroupNormOptions);
    requireInteger('GroupNorm groups', groups, 1);
    requireInteger('GroupNorm channels', channels, 1);
    this.eps = requireFinite('GroupNorm eps', eps, 0);
    this.weight = affine ? new Parameter([channels], ones) : null;
    this.bias = affine ? new Parameter([channels], zeros) : null;
    if (channels % groups === 0) return;
    throw argumentError('GroupNorm', `groups that divide ${channels} channels`, String(groups));
  }

  /** Maps [B, channels, ...] to the same shape. Throws DS_SHAPE if x has other sizes. */
  override forward(x: Tensor): Tensor {
    const { groups, channels, weight, bias, eps } = this;
    requireTensor('GroupNorm', x);
    if (x.ndim < 2 || x.shape[1] !== channels) {
      throw new DsError({
        code: 'DS_SHAPE',
        op: 'GroupNorm',
        expected: `[N, ${channels}, ..]`,
        got: describe(x),
      });
    }
    return scope(() => {
      const rows = x.reshape([x.size(0), groups, numel(x.shape.slice(1)) / groups]);
      const tensor = constantOnes([rows.size(-1)], { dtype: x.dtype, device: x.device });
      const normed = layerNorm(rows, tensor, null, eps).reshape(x.shape);
      if (!weight || !bias) return normed;
      const shape = [channels, ...x.shape.slice(2).fill(1)];
      return normed.mul(weight.reshape(shape)).add(bias.reshape(shape));
    });
  }
}
