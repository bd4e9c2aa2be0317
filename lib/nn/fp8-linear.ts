// A linear layer with a frozen weight in FP8 that also computes its product in FP8.

import { DsError } from '../errors.js';
import type { DType } from '../runtime/dtype.js';
import * as kernels from '../runtime/kernels.generated.js';
import { leading, required } from '../runtime/required.js';
import { describe } from '../runtime/view.js';
import { cast, noGrad, scope, Tensor } from '../tensor/index.js';
import { FP8_MULTIPLE, multiplyRows, quantizeRows } from '../tensor/ops/fp8-linear.js';
import { computeRows, type JoinableLinear, type JointProduct } from './joined-linears.js';
import { type Linear, LinearGelu } from './linear.js';
import { type PackedLayout, PackedLinear, StoredParameter } from './packed-linear.js';
import type { Parameter } from './parameter.js';

/** @internal Values of e4m3 codes: 4 bits of exponent, 3 of mantissa, no infinity. */
export const E4M3 = Float32Array.from({ length: 256 }, (_, code) => {
  const [sign, exponent, mantissa] = [code >> 7 ? -1 : 1, (code >> 3) & 15, code & 7];
  if (exponent === 15 && mantissa === 7) return Number.NaN;
  return exponent === 0 ? (sign * mantissa) / 512 : sign * (1 + mantissa / 8) * 2 ** (exponent - 7);
});

/**
 * A linear layer x W^T + b with a frozen W in e4m3 and a power of two as scale of each output. Each
 * row of x is rounded to e4m3 with a scale of its own, and the product sums codes in f32 on the
 * tensor cores (compute capability 9.0 to 10.x). The gradient of x is that of the dequantized
 * weight.
 */
export class Fp8Linear extends PackedLinear implements JoinableLinear {
  /** Codes of the weight [outputs, inputs padded to 16] u8. */
  readonly weight_codes: Parameter;
  /** Scale of each output [outputs] f32. */
  readonly weight_scale: Parameter;
  /** The bias [outputs]; null without one. */
  readonly bias: Parameter | null;

  constructor(layout: PackedLayout, bias: Parameter | null = null) {
    super(layout);
    const [outputs, inputs] = leading(layout.shape, 2);
    const padded = Math.ceil(inputs / FP8_MULTIPLE) * FP8_MULTIPLE;
    this.weight_codes = new StoredParameter([outputs, padded], 'u8');
    this.weight_scale = new StoredParameter([outputs], 'f32');
    this.bias = bias;
  }

  /**
   * Quantizes `layer` on its device. The bias is shared. Throws DS_NONFINITE for weights that are
   * not finite.
   */
  static from(layer: Linear): Fp8Linear {
    const { weight, bias } = layer;
    const layout = { shape: weight.shape, hasGelu: layer instanceof LinearGelu };
    const created = new Fp8Linear(layout, bias);
    for (const part of [created.weight_codes, created.weight_scale]) {
      part.moveTo(weight.device, part.dtype);
    }
    noGrad(() => scope(() => created.store(weight.contiguous())));
    const sum = noGrad(() => scope(() => created.weight_scale.sum().item()));
    if (Number.isFinite(sum)) return created;
    throw new DsError({
      code: 'DS_NONFINITE',
      op: 'Fp8Linear.from',
      expected: 'weights that are finite numbers',
      got: `inf or NaN in a weight [${layout.shape.join(', ')}]`,
    });
  }

  override get stored(): Parameter {
    return this.weight_codes;
  }

  override values(dtype: DType): Tensor {
    return noGrad(() =>
      scope(() => {
        const { weight_codes: codes, weight_scale: scale } = this;
        const [outputs, inputs] = leading(this.shape, 2);
        const table = Tensor.from(E4M3, { device: codes.device });
        const values = table.indexSelect(0, codes.to('i32').reshape([-1]));
        const rows = values.reshape([outputs, -1]).narrow(1, 0, inputs);
        return cast(rows.mul(scale.reshape([outputs, 1])), dtype);
      }),
    );
  }

  protected override store(values: Tensor): void {
    const rows = values.dtype === 'f64' ? cast(values, 'f32') : values;
    quantizeRows(rows, { codes: this.weight_codes, scale: this.weight_scale });
  }

  protected override multiply(x: Tensor, bias: Tensor | null): Tensor {
    const [, inputs] = leading(this.shape, 2);
    if (x.ndim < 1 || x.shape[x.ndim - 1] !== inputs) {
      const expected = `[.., ${inputs}]`;
      throw new DsError({ code: 'DS_SHAPE', op: 'Fp8Linear', expected, got: describe(x) });
    }
    return multiplyCodes(x, [this.weight_codes, this.weight_scale, ...(bias ? [bias] : [])]);
  }

  /** @internal See JoinableLinear. Layers with an activation are not joined. */
  joining(): JointProduct | null {
    const { weight_codes, weight_scale, bias } = this;
    if (this.constructor !== Fp8Linear || this.hasGelu) return null;
    const inputs = required(this.shape[1]);
    return {
      kind: `fp8, ${inputs}, ${bias !== null}`,
      inputs,
      parts: [weight_codes, weight_scale, ...(bias ? [bias] : [])],
      product: multiplyCodes,
      gated: (x, parts) => scope(() => multiplyGated(x, parts)),
    };
  }
}

/** Maps x [.., inputs] to [.., outputs]; parts: codes, scales, and a bias if there is one. */
function multiplyCodes(x: Tensor, [codes, scale, bias]: readonly Tensor[]): Tensor {
  const weight = { codes: required(codes), scale: required(scale) };
  return scope(() =>
    computeRows(x, weight.codes.size(0), (rows, out) =>
      multiplyRows(quantizeRows(rows), weight, out, bias ?? null),
    ),
  );
}

/** Maps x [.., inputs] to [.., outputs / 2]; the first half of the outputs are gates. */
function multiplyGated(x: Tensor, parts: readonly Tensor[]): Tensor {
  const gateAndUp = multiplyCodes(x, parts);
  const half = gateAndUp.size(-1) / 2;
  return computeRows(gateAndUp, half, (rows, out) =>
    kernels.swiglu({ gate: rows.narrow(1, 0, half), up: rows.narrow(1, half, half), out }),
  );
}
