// A linear layer with the updates of several adapters. Each row of a step uses one adapter or none.

import type {
  JoinableLinear,
  JointProduct,
  ProductAddition,
  RowsBehind,
} from '../../nn/joined-linears.js';
import { Linear, LinearGelu } from '../../nn/linear.js';
import { type Field, Module } from '../../nn/module.js';
import { PackedLinear } from '../../nn/packed-linear.js';
import type { Parameter } from '../../nn/parameter.js';
import { ColumnLinear, RowLinear } from '../../parallel/layers.js';
import { rangesIn } from '../../parallel/rank-ranges.js';
import type { Device } from '../../runtime/device.js';
import type { DType } from '../../runtime/dtype.js';
import * as kernels from '../../runtime/kernels.generated.js';
import { leading } from '../../runtime/required.js';
import { concat, gelu, held, linear, scope, Tensor } from '../../tensor/index.js';

/** Layers that may have adapters. */
export type AdaptableLinear = Linear | PackedLinear | ColumnLinear | RowLinear;

/** Returns whether adapters of `module` can be applied at run time, next to other adapters. */
export const isAdaptable = (module: Module): module is AdaptableLinear =>
  module instanceof Linear ||
  module instanceof PackedLinear ||
  module instanceof ColumnLinear ||
  module instanceof RowLinear;

/** The adapters of one layer on the device, by slot. */
export interface LayerSlots {
  /**
   * A of each adapter: [slots, largest rank, inputs here]; null until the memory of the weights is
   * placed. A may follow the weight in memory.
   */
  a: Tensor | null;
  /** Shape of A if one product can compute both x W^T and x A^T; else null. */
  readonly behind: readonly number[] | null;
  /** Zeros after the bias, if A follows the weight in memory. */
  noBias: Tensor | null;

  /** scaling * B: [slots, outputs here, largest rank]. */
  readonly b: Tensor;
  /** [slots] i32; 0 if the adapter does not change the layer. */
  readonly ranks: Tensor;
}

/**
 * Replaces `base` under the same parameter names. For rows with an adapter, forward() adds the
 * update of the adapter to the product. Other rows keep the same bits.
 */
export class AdaptedLinear extends Module implements JoinableLinear {
  /** A private field, not a child module: a child would change parameter names. */
  readonly #base: AdaptableLinear;
  readonly #running: () => ProductAddition | null;
  readonly #slots: LayerSlots;

  constructor(base: AdaptableLinear, slots: LayerSlots, running: () => ProductAddition | null) {
    super();
    this.#base = base;
    this.#slots = slots;
    this.#running = running;
    this.training = base.training;
  }

  /** The layer without adapters. */
  get base(): AdaptableLinear {
    return this.#base;
  }

  /** @internal */
  get slots(): LayerSlots {
    return this.#slots;
  }

  /** The base's weight, which some models read directly. */
  get weight(): Parameter {
    const base = this.#base;
    return base instanceof PackedLinear ? base.stored : base.weight;
  }

  /** The base's bias. */
  get bias(): Parameter | null {
    return this.#base.bias;
  }

  /** @internal */
  protected override *fields(): Generator<[string, Field]> {
    yield* Module.fieldsOf(this.#base);
  }

  /** @internal See JoinableLinear. */
  joining(): JointProduct | null {
    const base = this.#base;
    return 'joining' in base ? (base as JoinableLinear).joining() : null;
  }

  /** @internal See JoinableLinear. */
  get behind(): RowsBehind | null {
    const slots = this.#slots;
    const shape = slots.behind;
    if (!shape || slots.a || !isPlainLinear(this.#base, slots.b)) return null;
    const place = (rows: Tensor | null, bias: Tensor | null): void => {
      slots.a = rows ?? zeros(shape, slots.b);
      slots.noBias = bias;
    };
    return { shape, place };
  }

  /** @internal See JoinableLinear. */
  get beside(): ProductAddition | null {
    return this.#running();
  }

  /** Maps x [..., inputs] to [..., outputs]. Throws DS_SHAPE, DS_COMM. */
  override forward(x: Tensor): Tensor {
    const base = this.#base;
    const beside = this.#running();
    if (!beside) return base.call(x);
    return scope(() => {
      if (base instanceof RowLinear) {
        return base.shard.around(
          x,
          (ownTensor) => this.addUpdates(ownTensor, beside, null),
          base.bias,
        );
      }
      if (!(base instanceof ColumnLinear)) return this.activate(this.addUpdates(x, beside));
      return base.shard.around(x, (ownTensor) => this.activate(this.addUpdates(ownTensor, beside)));
    });
  }

  /** Returns the product plus the updates, before the activation. */
  private addUpdates(
    x: Tensor,
    beside: ProductAddition,
    bias: Tensor | null = this.#base.bias,
  ): Tensor {
    const base = this.#base;
    const fused = bias === base.bias ? beside.product(x, [this], false) : null;
    if (fused) return fused;
    const sum = base instanceof PackedLinear ? base.project(x, bias) : linear(x, base.weight, bias);
    const out = sum.contiguous();
    beside.add(x, [this], [out.reshape([-1, out.size(-1)])]);
    return out;
  }

  private activate(sum: Tensor): Tensor {
    const base = this.#base;
    const hasGelu = base instanceof LinearGelu || ('hasGelu' in base && base.hasGelu);
    return hasGelu ? gelu(sum, 'tanh') : sum;
  }
}

/** Returns whether the layer is x W^T + b, in the adapters' dtype and on their device. */
const isPlainLinear = (base: AdaptableLinear, { dtype, device }: Tensor): base is Linear =>
  base.constructor === Linear &&
  base.fp8 === null &&
  [base.weight, base.bias ?? base.weight].every(
    (part) => part.dtype === dtype && part.device === device,
  );

/** Returns zeros in the dtype and on the device of `like`; no scope owns them. */
export const zeros = (
  shape: readonly number[],
  { dtype, device }: { dtype: DType; device: Device },
): Tensor =>
  held(() => {
    const out = Tensor.empty(shape, dtype, device);
    kernels.fill({ out, value: 0 });
    return out;
  });

/** Sizes of a layer on this rank, and of the whole layer. Adapter files have the whole sizes. */
interface LayerShape {
  readonly inputs: number;
  readonly outputs: number;
  readonly whole: { readonly inputs: number; readonly outputs: number };
}

/** Returns the sizes of a layer. */
export function layerShape(base: AdaptableLinear): LayerShape {
  const [outputs, inputs] = leading(
    base instanceof PackedLinear ? base.shape : base.weight.shape,
    2,
  );
  const all = base instanceof PackedLinear ? base.shape : base.weight.region.whole;
  const whole = { outputs: all[0] ?? outputs, inputs: all[1] ?? inputs };
  return { inputs, outputs, whole };
}

/** Returns this rank's part of A [rank, inputs] and B [outputs, rank]. */
export function sliceFactors(base: AdaptableLinear, a: Tensor, b: Tensor): [Tensor, Tensor] {
  const takeTensor = (
    whole: Tensor,
    dim: number,
    shard: ColumnLinear['shard'] | RowLinear['shard'],
  ) => {
    const { rank } = (base as ColumnLinear | RowLinear).group;
    const parts = rangesIn(shard.cut, whole.size(dim), rank);
    return concat(
      parts.map(({ first, count }) => whole.narrow(dim, first, count)),
      dim,
    );
  };
  if (base instanceof ColumnLinear) return [a, takeTensor(b, 0, base.shard)];
  if (base instanceof RowLinear) return [takeTensor(a, 1, base.shard), b];
  return [a, b];
}
