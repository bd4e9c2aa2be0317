// A linear layer whose frozen weight is stored in 4 bits: NF4, with scales in 8 bits if wanted.
import { DsError } from '../errors.js';
import { type Linear, LinearGelu } from '../nn/layers.js';
import { Module } from '../nn/module.js';
import { Parameter } from '../nn/parameter.js';
import type { DType } from '../runtime/dtype.js';
import * as kernels from '../runtime/kernels.generated.js';
import { type OptionNames, readOptions } from '../runtime/options.js';
import { requireInteger } from '../runtime/require-number.js';
import { requireType } from '../runtime/require-type.js';
import { numel } from '../runtime/view.js';
import { cast, customFunction, gelu, linear, noGrad, scope, Tensor } from '../tensor/index.js';
import { DYNAMIC_CODE, NF4_CODE } from './codebooks.js';

/** How weights are stored. Names and defaults as in bitsandbytes. */
export interface NF4Options {
  /** Weights that share a scale: even. Default 64. */
  blockSize?: number;
  /**
   * Whether scales are stored in 8 bits, in blocks of 256: 4.13 bits a weight instead of 4.5.
   * Default true.
   */
  doubleQuant?: boolean;
}

const NAMES: OptionNames<NF4Options> = { blockSize: true, doubleQuant: true };

/** Scales that share a scale of their own. */
const NESTED_BLOCK = 256;

/** NF4Options, complete, and what the layer computes. */
export interface NF4Layout {
  /** [outputs, inputs]. */
  shape: readonly number[];
  /** Weights that share a scale: even. */
  blockSize: number;
  /** Whether scales are stored in 8 bits. */
  doubleQuant: boolean;
  /** Followed by gelu_tanh, as a LinearGelu. */
  hasGelu: boolean;
}

/** Throws DS_ARGUMENT. */
export function readNF4Options(op: string, given: NF4Options): Required<NF4Options> {
  const { blockSize = 64, doubleQuant = true } = readOptions(op, given, NAMES);
  requireType(`${op} doubleQuant`, doubleQuant, 'boolean');
  if (requireInteger(`${op} blockSize`, blockSize, 2) % 2 === 0) return { blockSize, doubleQuant };
  const got = String(blockSize);
  throw new DsError({
    code: 'DS_ARGUMENT',
    op: `${op} blockSize`,
    expected: 'an even number',
    got,
  });
}

/** Bytes and scales that nobody has set yet. */
const unset = (out: Tensor): void => kernels.fill({ out, value: 0 });

const setTo =
  (values: readonly number[]) =>
  (out: Tensor): void =>
    scope(() => kernels.copy({ in: Tensor.from(values, { device: out.device }), out }));

/**
 * x W^T + b, where W is stored in 4 bits and made again, one layer at a time, in x's dtype for the
 * product and once more for its gradient. W is frozen: it is bytes, which stage 3 shards and
 * offload_param moves like other weights. Source: Dettmers et al. 2023; the numbers are those of
 * bitsandbytes' Linear4bit.
 */
export class NF4Linear extends Module {
  /** [n / 2, 1] u8: two weights a byte, the first in the high half. */
  readonly weight: Parameter;
  /** A scale per block: u8 with doubleQuant, else f32. */
  readonly absmax: Parameter;
  /** [16] f32: what the halves of bytes stand for. */
  readonly quant_map: Parameter;
  /** A scale per 256 scales, f32. */
  readonly nested_absmax: Parameter | null = null;
  /** [256] f32: what bytes of absmax stand for. */
  readonly nested_quant_map: Parameter | null = null;
  /** [1] f32: the mean that was taken from the scales. */
  readonly nested_offset: Parameter | null = null;
  /** [outputs]; null without one. */
  readonly bias: Parameter | null;
  /** Sizes, and what follows. */
  readonly #layout: NF4Layout;

  constructor(layout: NF4Layout, bias: Parameter | null = null) {
    super();
    this.#layout = layout;
    const count = numel(layout.shape);
    const blocks = Math.ceil(count / layout.blockSize);
    const stored = (
      shape: number[],
      dtype: DType,
      init: (out: Tensor) => void = unset,
    ): Parameter => {
      const parameter = new Parameter(shape, init, dtype);
      parameter.fixedDtype = dtype;
      return parameter.requireGrad(false);
    };
    this.weight = stored([Math.ceil(count / 2), 1], 'u8');
    this.absmax = stored([blocks], layout.doubleQuant ? 'u8' : 'f32');
    this.quant_map = stored([16], 'f32', setTo(NF4_CODE));
    if (layout.doubleQuant) {
      this.nested_absmax = stored([Math.ceil(blocks / NESTED_BLOCK)], 'f32');
      this.nested_quant_map = stored([256], 'f32', setTo(DYNAMIC_CODE));
      this.nested_offset = stored([1], 'f32');
    }
    this.bias = bias;
  }

  /** `layer` with its weight in 4 bits; the bias is shared. On the layer's device. */
  static from(layer: Linear, given: NF4Options = {}): NF4Linear {
    const options = readNF4Options('NF4Linear.from', given);
    const { weight, bias } = layer;
    const hasGelu = layer instanceof LinearGelu;
    const shape = weight.shape;
    const made = new NF4Linear({ ...options, shape, hasGelu }, bias);
    for (const parameter of made.parameters()) {
      if (parameter !== bias) parameter.moveTo(weight.device, parameter.dtype);
    }
    noGrad(() => scope(() => made.setValues(cast(weight, 'f32'))));
    return made;
  }

  /** [outputs, inputs]. */
  get shape(): readonly number[] {
    return this.#layout.shape;
  }

  /** Weights that share a scale. */
  get blockSize(): number {
    return this.#layout.blockSize;
  }

  /** Scales that share one. */
  get nestedBlockSize(): number {
    return NESTED_BLOCK;
  }

  /** Whether gelu_tanh follows. */
  get hasGelu(): boolean {
    return this.#layout.hasGelu;
  }

  /** The weight [outputs, inputs] in `dtype`. */
  values(dtype: DType): Tensor {
    const out = Tensor.empty(this.shape, dtype, this.weight.device);
    kernels.nf4Dequantize({
      packed: this.weight,
      code: this.quant_map,
      absmax: this.absmax,
      nestedCode: this.nested_quant_map,
      nestedAbsmax: this.nested_absmax,
      offset: this.nested_offset,
      out,
      block: this.blockSize,
      nestedBlock: NESTED_BLOCK,
    });
    return out;
  }

  /**
   * Stores other values, rounded to what 4 bits can say. Throws DS_ARGUMENT where an engine has the
   * weight.
   */
  setValues(values: Tensor): void {
    this.weight.requireWritable('NF4Linear.setValues');
    noGrad(() => scope(() => this.store(values.contiguous())));
  }

  private store(values: Tensor): void {
    const {
      weight,
      absmax,
      nested_absmax,
      nested_quant_map,
      nested_offset,
      quant_map: code,
    } = this;
    const scales = Tensor.empty(absmax.shape, 'f32', weight.device);
    kernels.nf4Quantize({
      in: values,
      code,
      packed: weight,
      absmax: scales,
      block: this.blockSize,
    });
    if (!nested_absmax || !nested_quant_map || !nested_offset) {
      kernels.copy({ in: scales, out: absmax });
      return;
    }
    kernels.copy({ in: scales.mean().reshape([1]), out: nested_offset });
    kernels.bytesQuantize({
      in: scales.sub(nested_offset),
      code: nested_quant_map,
      out: absmax,
      absmax: nested_absmax,
      block: NESTED_BLOCK,
    });
  }

  /** x W^T + b without the activation that may follow. */
  project(x: Tensor): Tensor {
    const { bias } = this;
    const product = this.product(x);
    return bias ? product.add(bias) : product;
  }

  /** The weight needs no gradient: nothing of x is kept. */
  private readonly product = customFunction({
    name: 'nf4_linear',
    forward: (context, x: Tensor) => {
      context.values.shape = x.shape;
      return scope(() => linear(x, this.values(x.dtype)));
    },
    backward: (context, grad) => {
      if (!grad) return null;
      const rows = grad.reshape([-1, this.shape[0] as number]);
      return rows.matmul(this.values(grad.dtype)).reshape(context.values.shape as number[]);
    },
  });

  /** [..., inputs] to [..., outputs]. Throws DS_SHAPE. */
  override forward(x: Tensor): Tensor {
    return scope(() => {
      const sum = this.project(x);
      return this.hasGelu ? gelu(sum, 'tanh') : sum;
    });
  }
}
