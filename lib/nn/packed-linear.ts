// Linear layers with frozen weights in fewer bits than the compute dtype.

import type { DType } from '../runtime/dtype.js';
import * as kernels from '../runtime/kernels.generated.js';
import { refused } from '../runtime/refused.js';
import { required } from '../runtime/required.js';
import { customFunction, gelu, linear, noGrad, scope, type Tensor } from '../tensor/index.js';
import { noteChanged } from '../tensor/tape.js';
import { Module } from './module.js';
import { Parameter } from './parameter.js';

/** Initializer of bytes and scales before their values are set. */
const unset = (out: Tensor): void => kernels.fill({ out, value: 0 });

/**
 * A part of a packed weight: it keeps its dtype, and is never trained. An engine shards, offloads
 * and saves it as other parameters.
 */
export class StoredParameter extends Parameter {
  constructor(shape: readonly number[], dtype: DType, init: (out: Tensor) => void = unset) {
    super(shape, init, dtype);
    this.fixedDtype = dtype;
    this.requiresGrad = false;
  }

  /** Throws DS_ARGUMENT for true. */
  override requireGrad(on = true): this {
    if (!on) return this;
    throw refused(
      'requireGrad',
      'a parameter that can change by small steps',
      'a part of a quantized weight',
      'Train adapters instead: peft.addLora(model) freezes the rest.',
    );
  }
}

/** Properties of a layer with a packed weight. */
export interface PackedLayout {
  /** [outputs, inputs]. */
  shape: readonly number[];
  /** Followed by gelu_tanh, as a LinearGelu. */
  hasGelu: boolean;
}

/** x W^T + b with a frozen W in a packed format. */
export abstract class PackedLinear extends Module {
  /** [outputs]; null without one. */
  abstract readonly bias: Parameter | null;
  /** Sizes, and the operation after the product. */
  readonly #layout: PackedLayout;

  protected constructor({ shape, hasGelu }: PackedLayout) {
    super();
    this.#layout = { shape: [...shape], hasGelu };
  }

  /** [outputs, inputs]. */
  get shape(): readonly number[] {
    return this.#layout.shape;
  }

  /** Whether gelu_tanh follows. */
  get hasGelu(): boolean {
    return this.#layout.hasGelu;
  }

  /** The weight [outputs, inputs] in `dtype`. */
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
    noteChanged(this.stored);
  }

  /** x W^T + b, without gradients. Default: dequantizes the whole weight temporarily. */
  protected multiplied(x: Tensor, bias: Tensor | null): Tensor {
    return linear(x, this.values(x.dtype), bias);
  }

  /** x W^T + b without the layer's activation; with `bias` null also without the bias. */
  project(x: Tensor, bias: Tensor | null = this.bias): Tensor {
    return bias ? this.product(x, bias) : this.product(x);
  }

  /** The weight needs no gradient: nothing of x is kept. */
  private readonly product = customFunction({
    name: 'packed_linear',
    forward: (context, x: Tensor, bias: Tensor | null = null) => {
      context.values.shape = x.shape;
      context.values.bias = bias;
      context.save(this.stored);
      return scope(() => this.multiplied(x, bias));
    },
    backward: (context, grad) => {
      if (!grad) return null;
      const rows = grad.reshape([-1, required(this.shape[0])]);
      const dx = rows.matmul(this.values(grad.dtype)).reshape(context.values.shape as number[]);
      const { bias } = context.values as { bias: Tensor | null };
      return bias?.requiresGrad ? [dx, rows.sum(0)] : dx;
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
