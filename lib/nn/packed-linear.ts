// Linear layers with frozen weights in fewer bits than the compute dtype.

import type { DType } from '../runtime/dtype.js';
import { argumentError } from '../runtime/input-errors.js';
import * as kernels from '../runtime/kernels.generated.js';
import { gelu, linear, noGrad, scope, type Tensor } from '../tensor/index.js';
import { gemm, gemmRows, plainOperand } from '../tensor/ops/matmul.js';
import { asRows, sumToShape } from '../tensor/ops/shapes.js';
import { markChanged, record } from '../tensor/tape.js';
import { Module } from './module.js';
import { Parameter } from './parameter.js';

/** Writes zeros, until store() or a load writes the values. */
const leaveUnset = (out: Tensor): void => kernels.fill({ out, value: 0 });

/**
 * A part of a packed weight: it keeps its dtype, and is never trained. An engine shards, offloads
 * and saves it as other parameters.
 */
export class StoredParameter extends Parameter {
  /** `init` writes the first values. Default: zeros. */
  constructor(shape: readonly number[], dtype: DType, init: (out: Tensor) => void = leaveUnset) {
    super(shape, init, dtype);
    this.fixedDtype = dtype;
    this.requiresGrad = false;
  }

  /** Throws DS_ARGUMENT for true. */
  override requireGrad(on = true): this {
    if (!on) return this;
    throw argumentError(
      'requireGrad',
      'a parameter that can change by small steps',
      'a part of a quantized weight',
      'Train adapters instead: peft.addLora(model) freezes the rest.',
    );
  }
}

/** Properties of a layer with a packed weight. */
export interface PackedLayout {
  /** Shape of the layer [outputs, inputs]. */
  shape: readonly number[];
  /** Whether gelu_tanh follows, as in LinearGelu. */
  hasGelu: boolean;
}

/** A linear layer x W^T + b with a frozen W in a packed format. */
export abstract class PackedLinear extends Module {
  /** The bias [outputs]; null without one. */
  abstract readonly bias: Parameter | null;
  /** Sizes, and the operation after the product. */
  readonly #layout: PackedLayout;

  protected constructor({ shape, hasGelu }: PackedLayout) {
    super();
    this.#layout = { shape: [...shape], hasGelu };
  }

  /** Shape of the layer [outputs, inputs]. */
  get shape(): readonly number[] {
    return this.#layout.shape;
  }

  /** Whether gelu_tanh follows. */
  get hasGelu(): boolean {
    return this.#layout.hasGelu;
  }

  /** Returns the weight [outputs, inputs] in `dtype`. */
  abstract values(dtype: DType): Tensor;

  /** The parameter that holds most of the weight. */
  abstract get stored(): Parameter;

  /** Stores contiguous f32 values [outputs, inputs]. */
  protected abstract store(values: Tensor): void;

  /**
   * Stores other values, rounded to the packed format. Throws DS_ARGUMENT if an engine owns the
   * weight.
   */
  setValues(values: Tensor): void {
    this.stored.requireWritable(`${this.constructor.name}.setValues`);
    noGrad(() => scope(() => this.store(values.contiguous())));
    markChanged(this.stored);
  }

  /** Returns x W^T + b without gradients. Default: dequantizes the complete weight temporarily. */
  protected multiply(x: Tensor, bias: Tensor | null): Tensor {
    return linear(x, this.values(x.dtype), bias);
  }

  /** Returns x W^T + b without the layer's activation; with `bias` null also without the bias. */
  project(x: Tensor, bias: Tensor | null = this.bias): Tensor {
    return this.product(x, bias);
  }

  /** Returns and records the product. Keeps nothing of x: the weight needs no gradient. */
  private product(x: Tensor, bias: Tensor | null): Tensor {
    const out = noGrad(() => scope(() => this.multiply(x, bias)));
    const inputs = bias ? [x, bias] : [x];
    record('packed_linear', inputs, [out], [this.stored], ([grad], sink) => {
      const rows = gemmRows(grad);
      sink.write(0, (dx, accumulate) =>
        scope(() =>
          gemm(plainOperand(rows), plainOperand(this.values(grad.dtype)), asRows(dx), accumulate),
        ),
      );
      if (bias) sink.write(1, (db, accumulate) => sumToShape(rows, db, accumulate));
    });
    return out;
  }

  /** Maps [..., inputs] to [..., outputs]. Throws DS_SHAPE if x has other sizes. */
  override forward(x: Tensor): Tensor {
    return scope(() => {
      const sum = this.project(x);
      return this.hasGelu ? gelu(sum, 'tanh') : sum;
    });
  }
}
