// A linear layer with a frozen 4-bit weight: NF4, optionally with 8-bit scales.
import { DsError } from '../errors.js';
import { type Linear, LinearGelu } from '../nn/linear.js';
import { type PackedLayout, PackedLinear, StoredParameter } from '../nn/packed-linear.js';
import type { Parameter } from '../nn/parameter.js';
import type { DType } from '../runtime/dtype.js';
import { argumentError } from '../runtime/input-errors.js';
import * as kernels from '../runtime/kernels.generated.js';
import { namesOf, readOptions } from '../runtime/options.js';
import { requireInteger } from '../runtime/require-number.js';
import { required } from '../runtime/required.js';
import { numel } from '../runtime/view.js';
import { cast, noGrad, scope, Tensor } from '../tensor/index.js';

/** Storage options of 4-bit weights. Names and defaults as in bitsandbytes. */
export interface NF4Options {
  /** Weights per scale, an even number. Default: 64. */
  blockSize?: number;
  /**
   * Whether scales are in 8 bits, in blocks of 256: 4.13 bits per weight instead of 4.5. Default:
   * true.
   */
  doubleQuant?: boolean;
}

/** Scales per nested scale. */
const NESTED_BLOCK = 256;

/** NF4Options with defaults, and the layer's shape and activation. */
export interface NF4Layout extends PackedLayout {
  /** Weights per scale, an even number. */
  blockSize: number;
  /** Whether scales are in 8 bits. */
  doubleQuant: boolean;
}

/** Checks options. Throws DS_ARGUMENT unless blockSize is even. */
export function readNF4Options(op: string, given: NF4Options): Required<NF4Options> {
  const { blockSize = 64, doubleQuant = true } = readOptions(op, given, namesOf.NF4Options);
  if (requireInteger(`${op} blockSize`, blockSize, 2) % 2 === 0) return { blockSize, doubleQuant };
  const got = String(blockSize);
  throw argumentError(`${op} blockSize`, 'an even number', got);
}

const setTo =
  (values: readonly number[]) =>
  (out: Tensor): void =>
    scope(() => kernels.copy({ in: Tensor.from(values, { device: out.device }), out }));

/**
 * A linear layer x W^T + b with a frozen 4-bit weight. Forward and backward each dequantize W to
 * x's dtype, one layer at a time. W is a byte tensor, so stage 3 shards it and offload_param moves
 * it like other weights. Source: Dettmers et al. 2023; the values match bitsandbytes' Linear4bit.
 */
export class NF4Linear extends PackedLinear {
  /** Codes of the weight [n / 2, 1] u8: two weights per byte, the first in the high half. */
  readonly weight: Parameter;
  /** One scale per block: u8 with doubleQuant, else f32. */
  readonly absmax: Parameter;
  /** [16] f32: the codebook of weights. */
  readonly quant_map: Parameter;
  /** The f32 scales of the scales, one for each 256 scales. */
  readonly nested_absmax: Parameter | null = null;
  /** [256] f32: the codebook of scales. */
  readonly nested_quant_map: Parameter | null = null;
  /** [1] f32: the mean that was subtracted from the scales. */
  readonly nested_offset: Parameter | null = null;
  /** The bias [outputs]; null without a bias. */
  readonly bias: Parameter | null;
  /** Storage layout. */
  readonly #layout: NF4Layout;

  /** Creates zero codes, for setValues() or a load. */
  constructor(layout: NF4Layout, bias: Parameter | null = null) {
    super(layout);
    this.#layout = layout;
    const count = numel(layout.shape);
    const blocks = Math.ceil(count / layout.blockSize);
    this.weight = new StoredParameter([Math.ceil(count / 2), 1], 'u8');
    this.absmax = new StoredParameter([blocks], layout.doubleQuant ? 'u8' : 'f32');
    this.quant_map = new StoredParameter([16], 'f32', setTo(NF4_CODE));
    if (layout.doubleQuant) {
      this.nested_absmax = new StoredParameter([Math.ceil(blocks / NESTED_BLOCK)], 'f32');
      this.nested_quant_map = new StoredParameter([256], 'f32', setTo(DYNAMIC_CODE));
      this.nested_offset = new StoredParameter([1], 'f32');
    }
    this.bias = bias;
  }

  /**
   * @internal Returns from() with zeros that allocate no memory until they are read, to count
   * bytes.
   */
  static createUnfilled(layer: Linear, given: NF4Options = {}): NF4Linear {
    const options = readNF4Options('NF4Linear.from', given);
    const { weight, bias } = layer;
    const hasGelu = layer instanceof LinearGelu;
    return new NF4Linear({ ...options, shape: weight.shape, hasGelu }, bias);
  }

  /**
   * Quantizes the weight of `layer` on its device; the bias is shared. Throws DS_NONFINITE for
   * weights that are not finite.
   */
  static from(layer: Linear, given: NF4Options = {}): NF4Linear {
    const { weight, bias } = layer;
    const created = NF4Linear.createUnfilled(layer, given);
    for (const parameter of created.parameters()) {
      if (parameter !== bias) parameter.moveTo(weight.device, parameter.dtype);
    }
    noGrad(() => scope(() => created.setValues(cast(weight, 'f32'))));
    return created;
  }

  /** Weights per scale. */
  get blockSize(): number {
    return this.#layout.blockSize;
  }

  /** Scales per nested scale. */
  get nestedBlockSize(): number {
    return NESTED_BLOCK;
  }

  override values(dtype: DType): Tensor {
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

  override get stored(): Parameter {
    return this.weight;
  }

  protected override store(values: Tensor): void {
    requireFinite(values);
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
}

/** Throws DS_NONFINITE: NF4 has no code for NaN and would replace it by a finite value. */
function requireFinite(values: Tensor): void {
  const sum = scope(() => values.mul(0).sum().item());
  if (sum === 0) return;
  throw new DsError({
    code: 'DS_NONFINITE',
    op: 'NF4Linear',
    expected: 'weights that are finite numbers',
    got: `inf or NaN in a weight [${values.shape.join(', ')}]`,
  });
}

// Codebooks of 4-bit weights and of their 8-bit scales.

/**
 * The 16 values of NF4: quantiles of a normal distribution, scaled to [-1, 1], with 0 among them.
 * Source: Dettmers et al. 2023, "QLoRA", appendix E.
 */
export const NF4_CODE: readonly number[] = [
  -1, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453, -0.28444138169288635,
  -0.18477343022823334, -0.09105003625154495, 0, 0.07958029955625534, 0.16093020141124725,
  0.24611230194568634, 0.33791524171829224, 0.44070982933044434, 0.5626170039176941,
  0.7229568362236023, 1,
];

const EXPONENTS = 7;
const { fround } = Math;

/**
 * Returns n f32 values from `start` to `end`, each rounded once. The second half counts from the
 * end.
 */
function linspace(start: number, end: number, n: number): number[] {
  const from = fround(start);
  const step = fround((end - from) / (n - 1));
  return Array.from({ length: n }, (_, i) =>
    fround(i < n / 2 ? from + step * i : end - step * (n - 1 - i)),
  );
}

/**
 * Returns the 256 values of the dynamic 8-bit type in ascending order: 0, 1 and signed values. Each
 * power of ten from 1e-6 to 1 has twice as many values as the previous one. Source: Dettmers 2016,
 * "8-Bit Approximations for Parallelism in Deep Learning".
 */
function dynamicCode(): readonly number[] {
  const values = [0, 1];
  for (let i = 0; i < EXPONENTS; ++i) {
    const borders = linspace(0.1, 1, 2 ** i + 1);
    const scale = fround(10 ** (i - EXPONENTS + 1));
    for (let k = 0; k + 1 < borders.length; ++k) {
      const mean = fround(fround(required(borders[k]) + required(borders[k + 1])) / 2);
      values.push(fround(scale * mean), fround(-scale * mean));
    }
  }
  return values.sort((a, b) => a - b);
}

export const DYNAMIC_CODE = dynamicCode();
