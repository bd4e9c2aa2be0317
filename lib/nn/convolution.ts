// Convolutions as matrix products over sliding windows, with PyTorch's parameters; enough for patch
// embeddings and stems.

import { DsError } from '../errors.js';
import { valueError } from '../runtime/input-errors.js';
import { namesOf, readOptions } from '../runtime/options.js';
import { requireInteger } from '../runtime/require-number.js';
import { leading } from '../runtime/required.js';
import { describe } from '../runtime/view.js';
import {
  linear,
  type Pair,
  scope,
  type Tensor,
  unfold,
  type WindowOptions,
} from '../tensor/index.js';
import { requireTensor } from '../tensor/ops/shapes.js';
import { uniform } from './initializers.js';
import { Module } from './module.js';
import { Parameter } from './parameter.js';

/** Options of Conv1d and Conv2d; Conv1d takes only numbers. */
export interface ConvOptions extends WindowOptions {
  /** Whether the layer has a bias. Default: true. */
  bias?: boolean;
  /** Only 1, the default: groups of channels are not computed. */
  groups?: number;
}

const height = (pair: Pair): number => (typeof pair === 'object' ? pair?.[0] : pair);
const width = (pair: Pair): number => (typeof pair === 'object' ? pair?.[1] : pair);

function requireOneGroup(op: string, groups: number | undefined): void {
  if (groups === undefined || groups === 1) return;
  throw valueError(
    `${op} groups`,
    '1: grouped and depthwise convolutions are not supported',
    groups,
  );
}

/** Base of both convolutions: a weight over windows, and the window options. */
abstract class Convolution extends Module {
  /** The weight [output channels, input channels, ...window]. */
  readonly weight: Parameter;
  /** The bias [output channels]; null without one. */
  readonly bias: Parameter | null;
  protected readonly windows: WindowOptions;

  protected constructor(
    op: string,
    channels: readonly [number, number],
    kernel: number[],
    given: ConvOptions,
  ) {
    super();
    const [inputs, outputs] = channels;
    const { bias = true, groups, ...windows } = readOptions(op, given, namesOf.ConvOptions);
    requireOneGroup(op, groups);
    requireInteger(`${op} inputs`, inputs, 1);
    requireInteger(`${op} outputs`, outputs, 1);
    const fanIn = kernel.reduce((product, size) => product * size, inputs);
    const bound = 1 / Math.sqrt(fanIn);
    this.weight = new Parameter([outputs, inputs, ...kernel], uniform(bound));
    this.bias = bias ? new Parameter([outputs], uniform(bound)) : null;
    this.windows = windows;
  }

  /** Maps x [N, C, H, W] to [N, out, rows, columns], a view with the channels last in memory. */
  protected convolve(op: string, x: Tensor, kernel: readonly [number, number]): Tensor {
    const [outputs, inputs] = leading(this.weight.shape, 2);
    if (x.shape[1] !== inputs) {
      throw new DsError({
        code: 'DS_SHAPE',
        op,
        expected: `${inputs} channels in dim 1`,
        got: describe(x),
        hint: 'Channels are dim 1: [N, C, ...]; permute() images with channels in the last dim.',
      });
    }
    const windowCount = (size: number, pick: typeof height, at: 0 | 1): number => {
      const { stride = 1, padding = 0, dilation = 1 } = this.windows;
      const reach = pick(dilation) * (kernel[at] - 1) + 1;
      return Math.floor((size + 2 * pick(padding) - reach) / pick(stride)) + 1;
    };
    const columns = unfold(x, kernel, this.windows).transpose();
    const weight = this.weight.reshape([outputs, columns.size(-1)]);
    const sizes = [windowCount(x.size(2), height, 0), windowCount(x.size(3), width, 1)];
    const out = linear(columns, weight, this.bias).reshape([x.size(0), ...sizes, outputs]);
    return out.permute([0, 3, 1, 2]);
  }
}

/**
 * A two-dimensional convolution: x [N, in, H, W] gives [N, out, H', W'], [in, H, W] gives [out, H',
 * W']. Weight [out, in, kh, kw].
 */
export class Conv2d extends Convolution {
  private readonly kernel: readonly [number, number];

  /** Throws DS_ARGUMENT for invalid sizes or options. */
  constructor(inputs: number, outputs: number, kernelSize: Pair, options: ConvOptions = {}) {
    const kernel = [height(kernelSize), width(kernelSize)] as const;
    for (const size of kernel) requireInteger('Conv2d kernelSize', size, 1);
    super('Conv2d', [inputs, outputs], [...kernel], options);
    this.kernel = kernel;
  }

  /**
   * Maps [B, in, H, W] to [B, out, H', W'] by unfold and one product. Throws DS_SHAPE if x has
   * other sizes.
   */
  override forward(x: Tensor): Tensor {
    return scope(() => {
      requireTensor('Conv2d', x);
      if (x.ndim === 3) return this.convolve('Conv2d', x.unsqueeze(0), this.kernel).squeeze(0);
      return this.convolve('Conv2d', x, this.kernel);
    });
  }
}

/**
 * A one-dimensional convolution: x [N, in, T] gives [N, out, T'], [in, T] gives [out, T']. Weight
 * [out, in, k].
 */
export class Conv1d extends Convolution {
  private readonly kernelSize: number;

  /** Throws DS_ARGUMENT for invalid sizes or options. */
  constructor(inputs: number, outputs: number, kernelSize: number, options: ConvOptions = {}) {
    requireInteger('Conv1d kernelSize', kernelSize, 1);
    const {
      stride = 1,
      padding = 0,
      dilation = 1,
      ...rest
    } = readOptions('Conv1d', options, namesOf.ConvOptions);
    super('Conv1d', [inputs, outputs], [kernelSize], {
      stride: [1, requireInteger('Conv1d stride', stride, 1)],
      padding: [0, requireInteger('Conv1d padding', padding, 0)],
      dilation: [1, requireInteger('Conv1d dilation', dilation, 1)],
      ...rest,
    });
    this.kernelSize = kernelSize;
  }

  /** Maps [B, in, L] to [B, out, L']. Throws DS_SHAPE if x has other sizes. */
  override forward(x: Tensor): Tensor {
    return scope(() => {
      requireTensor('Conv1d', x);
      const batch = x.ndim === 2 ? x.unsqueeze(0) : x;
      const out = this.convolve('Conv1d', batch.unsqueeze(2), [1, this.kernelSize]).squeeze(2);
      return x.ndim === 2 ? out.squeeze(0) : out;
    });
  }
}
