// A linear layer with a frozen weight in codes of 8 or 4 bits and a scale per row or group.

import { DsError } from '../errors.js';
import type { DType } from '../runtime/dtype.js';
import { argumentError, valueError } from '../runtime/input-errors.js';
import * as kernels from '../runtime/kernels.generated.js';
import { namesOf, readOptions } from '../runtime/options.js';
import { requireInteger } from '../runtime/require-number.js';
import { leading, required } from '../runtime/required.js';
import { describe } from '../runtime/view.js';
import { cast, held, noGrad, refuseBatchInvariant, scope, Tensor } from '../tensor/index.js';
import { computeRows, type JoinableLinear, type JointProduct } from './joined-linears.js';
import { type Linear, LinearGelu } from './linear.js';
import { type PackedLayout, PackedLinear, StoredParameter } from './packed-linear.js';
import type { Parameter } from './parameter.js';

/** How weights become codes. */
export interface QuantizedOptions {
  /** Bits of a weight: 8 or 4. */
  bits: 8 | 4;
  /**
   * Neighbouring inputs per scale: a multiple of 8, or null for one scale per output. Default: 128
   * with 4 bits, null with 8.
   */
  groupSize?: number | null;
}

/** Complete QuantizedOptions, and further properties of a layer. */
export interface QuantizedLayout extends PackedLayout, Required<QuantizedOptions> {
  /** Dtype of the scales: f32, f16 or bf16. */
  scaleDType: DType;
  /** Whether each scale has a zero point; otherwise the middle code is 0. */
  hasZeros: boolean;
  /**
   * Whether codes are in another order than inputs; groups are contiguous in the order of codes.
   */
  isReordered: boolean;
}

/**
 * Returns the options with defaults. Throws DS_ARGUMENT unless bits is 4 or 8 and groupSize fits.
 */
export function readQuantizedOptions(
  op: string,
  given: QuantizedOptions,
): Required<QuantizedOptions> {
  const { bits, groupSize = bits === 4 ? 128 : null } = readOptions(
    op,
    given,
    namesOf.QuantizedOptions,
  );
  if (bits !== 4 && bits !== 8) throw valueError(`${op} bits`, '8 or 4', bits);
  if (groupSize === null || requireInteger(`${op} groupSize`, groupSize, 8) % 8 === 0) {
    return { bits, groupSize };
  }
  throw argumentError(`${op} groupSize`, 'a multiple of 8, or null', String(groupSize));
}

/**
 * A linear layer with a quantized weight: x W^T + b, where W is (code - zero) * scale of each
 * weight: int8 with a scale per output, or int4 in groups of inputs. A few rows of x use the codes
 * directly; more rows use a temporary dequantized weight. W is frozen. The gradient of x is that of
 * the dequantized weight. Parameters have the names and layout of compressed-tensors.
 */
export class QuantizedLinear extends PackedLinear implements JoinableLinear {
  /**
   * Packed codes [outputs, ceil(inputs bits / 32)] i32: the first code of a word in its lowest
   * bits.
   */
  readonly weight_packed: Parameter;
  /** Scales [outputs, groups]. */
  readonly weight_scale: Parameter;
  /**
   * Zero points [outputs, groups] u8; null if all are the middle code, 2^(bits - 1).
   */
  readonly weight_zero_point: Parameter | null;
  /**
   * Order of the inputs [inputs] i32: the input of each position in weight_packed; null if they are
   * in order.
   */
  readonly weight_order: Parameter | null;
  /** The bias [outputs]; null without one. */
  readonly bias: Parameter | null;
  /** Bits, groups and the optional parameters. */
  readonly #layout: QuantizedLayout;

  /** Creates zero codes, for setValues() or a load. */
  constructor(layout: QuantizedLayout, bias: Parameter | null = null) {
    super(layout);
    this.#layout = layout;
    const [outputs, inputs] = leading(layout.shape, 2);
    const groups = Math.ceil(inputs / this.group);
    const words = Math.ceil((inputs * layout.bits) / 32);
    this.weight_packed = new StoredParameter([outputs, words], 'i32');
    this.weight_scale = new StoredParameter([outputs, groups], layout.scaleDType);
    this.weight_zero_point = layout.hasZeros ? new StoredParameter([outputs, groups], 'u8') : null;
    this.weight_order = layout.isReordered ? new StoredParameter([inputs], 'i32') : null;
    this.bias = bias;
  }

  /**
   * Quantizes `layer`, each weight within half a step of its value; scales have the weight's dtype.
   * The bias is shared. Stays on the layer's device. Throws DS_ARGUMENT for invalid options,
   * DS_NONFINITE for weights that are not finite.
   */
  static from(layer: Linear, given: QuantizedOptions): QuantizedLinear {
    const { bits, groupSize } = readQuantizedOptions('QuantizedLinear.from', given);
    const { weight, bias } = layer;
    return QuantizedLinear.of(weight, {
      bits,
      groupSize,
      bias,
      hasGelu: layer instanceof LinearGelu,
    });
  }

  /**
   * @internal Quantizes only a weight [outputs, inputs]. `largest` [outputs, 1] has the largest
   * magnitudes of whole rows if the weight has a part of them. The scales of rows derive from them.
   */
  static of(
    weight: Parameter,
    parts: Required<QuantizedOptions> & {
      bias: Parameter | null;
      hasGelu: boolean;
      largest?: Tensor;
    },
  ): QuantizedLinear {
    const { bias, largest, ...rest } = parts;
    const scaleDType = weight.dtype === 'f64' ? 'f32' : weight.dtype;
    const layout = {
      ...rest,
      shape: weight.shape,
      scaleDType,
      hasZeros: false,
      isReordered: false,
    };
    const created = new QuantizedLinear(layout, bias);
    for (const parameter of [created.weight_packed, created.weight_scale]) {
      parameter.moveTo(weight.device, parameter.dtype);
    }
    noGrad(() =>
      scope(() => {
        const values = weight.dtype === 'f64' ? cast(weight, 'f32') : weight.contiguous();
        if (largest) created.storeBelow(values, largest);
        else created.store(values);
      }),
    );
    created.requireFinite();
    return created;
  }

  /**
   * Quantizes rows with their largest magnitudes appended as extra inputs, which are not stored.
   */
  private storeBelow(values: Tensor, largest: Tensor): void {
    const { weight_packed, weight_scale: scale, bits } = this;
    const [outputs, words] = leading(weight_packed.shape, 2);
    const inputs = (words * 32) / bits;
    const { dtype, device } = values;
    const wide = Tensor.empty([outputs, inputs + 32 / bits], dtype, device).fill_(0);
    kernels.copy({ in: values, out: wide.narrow(1, 0, values.size(1)) });
    kernels.copy({ in: cast(largest, dtype), out: wide.narrow(1, inputs, 1) });
    const packed = Tensor.empty([outputs, words + 1], 'i32', device);
    kernels.quantizeWeights({ in: wide, packed, scale, bits, group: wide.size(1) });
    kernels.copy({ in: packed.narrow(1, 0, words), out: weight_packed });
  }

  /**
   * @internal Creates a layer with new codes for these outputs and for inputs in whole words and
   * groups, `unit` each. Inputs count by position in the layer's order; the new layer has no order.
   */
  part({ rows, units }: QuantizedPart, bias: Parameter | null, hasGelu: boolean): QuantizedLinear {
    const { unit, bits, weight_packed, weight_scale, weight_zero_point } = this;
    const inputs = required(this.shape[1]);
    const first = units ? units.first * unit : 0;
    const places = units ? Math.min(units.count * unit, inputs - first) : inputs;
    const outputs = rows.reduce((sum, { count }) => sum + count, 0);
    const shape = [outputs, places];
    const created = new QuantizedLinear(
      { ...this.#layout, shape, hasGelu, isReordered: false },
      bias,
    );
    const [word, words] = [(first * bits) / 32, Math.ceil((places * bits) / 32)];
    const isGrouped = units !== null && this.groupSize !== null;
    const groups = isGrouped ? { from: units.first, count: units.count } : null;
    takePart(weight_packed, created.weight_packed, rows, { from: word, count: words });
    takePart(weight_scale, created.weight_scale, rows, groups);
    if (weight_zero_point && created.weight_zero_point) {
      takePart(weight_zero_point, created.weight_zero_point, rows, groups);
    }
    return created;
  }

  /** @internal Number of inputs that part() cannot separate: a group, or the codes of a word. */
  get unit(): number {
    return this.#layout.groupSize ?? 32 / this.bits;
  }

  /** Bits of a weight. */
  get bits(): 8 | 4 {
    return this.#layout.bits;
  }

  /** Inputs per scale; null if an output has one scale. */
  get groupSize(): number | null {
    return this.#layout.groupSize;
  }

  /** The group size for kernels, which accept a group larger than a row. */
  private get group(): number {
    return this.#layout.groupSize ?? Math.max(1, required(this.shape[1]));
  }

  override get stored(): Parameter {
    return this.weight_packed;
  }

  override values(dtype: DType): Tensor {
    return noGrad(() =>
      scope(() => {
        const { weight_order: order } = this;
        const out = Tensor.empty(this.shape, dtype, this.weight_packed.device);
        kernels.dequantizeWeights({ ...this.codes(), out });
        return order ? out.indexSelect(1, order.argsort()) : out;
      }),
    );
  }

  /** The kernels' arguments for the weight. */
  private codes() {
    const {
      weight_packed: packed,
      weight_scale: scale,
      weight_zero_point: zero,
      bits,
      group,
    } = this;
    return { packed, scale, zero, bits, group };
  }

  protected override store(values: Tensor): void {
    const { weight_packed, weight_scale, weight_zero_point, weight_order, bits, group } = this;
    const ordered = weight_order ? values.indexSelect(1, weight_order).contiguous() : values;
    kernels.quantizeWeights({
      in: ordered,
      packed: weight_packed,
      scale: weight_scale,
      bits,
      group,
    });
    if (weight_zero_point) kernels.fill({ out: weight_zero_point, value: 2 ** (bits - 1) });
  }

  private requireFinite(): void {
    const sum = noGrad(() => scope(() => cast(this.weight_scale, 'f32').sum().item()));
    if (Number.isFinite(sum)) return;
    throw new DsError({
      code: 'DS_NONFINITE',
      op: 'QuantizedLinear.from',
      expected: 'weights that are finite numbers',
      got: `inf or NaN in a weight [${this.shape.join(', ')}]`,
    });
  }

  protected override multiply(x: Tensor, bias: Tensor | null): Tensor {
    const [, inputs] = leading(this.shape, 2);
    if (x.ndim < 1 || x.shape[x.ndim - 1] !== inputs) {
      const expected = `[.., ${inputs}]`;
      throw new DsError({ code: 'DS_SHAPE', op: 'QuantizedLinear', expected, got: describe(x) });
    }
    const { weight_order: order } = this;
    const ordered = order ? x.indexSelect(-1, order) : x;
    return multiplyCodes(ordered, { ...this.codes(), bias });
  }

  /**
   * @internal See JoinableLinear. Layers with an input order need different x, and layers with an
   * activation are not joined.
   */
  joining(): JointProduct | null {
    const { weight_packed, weight_scale, weight_zero_point: zero, bias, bits, group } = this;
    if (this.constructor !== QuantizedLinear || this.weight_order || this.hasGelu) return null;
    const [hasZero, hasBias] = [zero !== null, bias !== null];
    const codesOf = ([packed, scale, ...rest]: readonly Tensor[]): Codes => {
      const [zero, bias] = [hasZero && rest.shift(), hasBias && rest.shift()];
      const codes = { packed: required(packed), scale: required(scale), bits, group };
      return { ...codes, zero: zero || null, bias: bias || null };
    };
    return {
      kind: ['quantized', bits, group, this.shape[1], hasZero, hasBias].join(),
      inputs: required(this.shape[1]),
      parts: [weight_packed, weight_scale, ...(zero ? [zero] : []), ...(bias ? [bias] : [])],
      product: (x, parts) => multiplyCodes(x, codesOf(parts)),
      gated: (x, parts) => multiplyGated(x, codesOf(parts)),
    };
  }
}

/** The part of a layer: rows of outputs, and units of inputs, or all of them (null). */
interface QuantizedPart {
  readonly rows: readonly { readonly first: number; readonly count: number }[];
  readonly units: { readonly first: number; readonly count: number } | null;
}

/** Copies some rows and columns of `whole` into new tensors of `into`. */
function takePart(
  whole: Parameter,
  into: Parameter,
  rows: QuantizedPart['rows'],
  columns: { from: number; count: number } | null,
): void {
  const values = held(() => Tensor.empty(into.shape, whole.dtype, whole.device));
  noGrad(() =>
    scope(() => {
      let at = 0;
      for (const { first, count } of rows) {
        const ownTensor = whole.narrow(0, first, count);
        const part = columns ? ownTensor.narrow(1, columns.from, columns.count) : ownTensor;
        kernels.copy({ in: part, out: values.narrow(0, at, count) });
        at += count;
      }
    }),
  );
  into.place(values);
  values.release();
}

/** Codes and bias in the kernels' format. */
type Codes = Omit<Parameters<typeof kernels.quantizedLinear>[0], 'x' | 'out'>;

/** Maps x [.., inputs] to [.., outputs]. */
const multiplyCodes = (x: Tensor, codes: Codes): Tensor => {
  refuseBatchInvariant('a linear layer', 'weights in f32, bf16 or f16', 'quantized ones');
  return computeRows(x, required(codes.packed.shape[0]), (rows, out) =>
    kernels.quantizedLinear({ x: rows, ...codes, out }),
  );
};

/** Maps x [.., inputs] to [.., outputs / 2]; the first half of the outputs are gates. */
const multiplyGated = (x: Tensor, codes: Codes): Tensor => {
  refuseBatchInvariant('a linear layer', 'weights in f32, bf16 or f16', 'quantized ones');
  return computeRows(x, required(codes.packed.shape[0]) / 2, (rows, out) =>
    kernels.quantizedGatedLinear({ x: rows, ...codes, out }),
  );
};
