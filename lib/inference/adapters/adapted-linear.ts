// A linear layer with the updates of several adapters: each row of a step uses its own, or none.

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
import { rangesIn } from '../../parallel/share.js';
import type { Device } from '../../runtime/device.js';
import type { DType } from '../../runtime/dtype.js';
import * as kernels from '../../runtime/kernels.generated.js';
import { leading } from '../../runtime/required.js';
import { concat, gelu, held, linear, scope, Tensor } from '../../tensor/index.js';

/** Layers that may have adapters. */
export type AdaptableLinear = Linear | PackedLinear | ColumnLinear | RowLinear;

/** Whether adapters of `module` may lie beside others. */
export const isAdaptable = (module: Module): module is AdaptableLinear =>
  module instanceof Linear ||
  module instanceof PackedLinear ||
  module instanceof ColumnLinear ||
  module instanceof RowLinear;

/** The adapters of one layer on the device, by slot. */
export interface LayerSlots {
  /**
   * A of each adapter: [slots, most ranks, inputs here]; null until the weights have their places.
   * It may lie behind the weight.
   */
  a: Tensor | null;
  /** The shape of A if one product may compute it and the weight. */
  readonly behind: readonly number[] | null;
  /** Zeros behind the bias, if A lies behind the weight. */
  noBias: Tensor | null;

  /** scaling * B: [slots, outputs here, most ranks]. */
  readonly b: Tensor;
  /** [slots] i32; 0: the adapter leaves the layer as it is. */
  readonly ranks: Tensor;
}

/**
 * A linear layer in place of `base`, with its parameter names. While a step has rows with adapters,
 * their updates are added to the product; other rows keep its bits.
 */
export class AdaptedLinear extends Module implements JoinableLinear {
  /** Not a child, since that would change parameter names. */
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

  /** The base's weight. Some models read it directly. */
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
    if (!shape || slots.a || !isPlain(this.#base, slots.b)) return null;
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

  /** [..., inputs] to [..., outputs]. Throws DS_SHAPE, DS_COMM. */
  override forward(x: Tensor): Tensor {
    const base = this.#base;
    const beside = this.#running();
    if (!beside) return base.call(x);
    return scope(() => {
      if (base instanceof RowLinear) {
        return base.shard.around(x, (ownTensor) => this.sumOf(ownTensor, beside, null), base.bias);
      }
      if (!(base instanceof ColumnLinear)) return this.finished(this.sumOf(x, beside));
      return base.shard.around(x, (ownTensor) => this.finished(this.sumOf(ownTensor, beside)));
    });
  }

  /** Returns the product and the updates, before the activation. */
  private sumOf(x: Tensor, beside: ProductAddition, bias: Tensor | null = this.#base.bias): Tensor {
    const base = this.#base;
    const whole = bias === base.bias ? beside.product(x, [this], false) : null;
    if (whole) return whole;
    const sum = base instanceof PackedLinear ? base.project(x, bias) : linear(x, base.weight, bias);
    const out = sum.contiguous();
    beside.add(x, [this], [out.reshape([-1, out.size(-1)])]);
    return out;
  }

  private finished(sum: Tensor): Tensor {
    const base = this.#base;
    const hasGelu = base instanceof LinearGelu || ('hasGelu' in base && base.hasGelu);
    return hasGelu ? gelu(sum, 'tanh') : sum;
  }
}

/** Whether the layer is x W^T + b, of the adapters' dtype and device. */
const isPlain = (base: AdaptableLinear, { dtype, device }: Tensor): base is Linear =>
  base.constructor === Linear &&
  base.fp8 === null &&
  [base.weight, base.bias ?? base.weight].every(
    (part) => part.dtype === dtype && part.device === device,
  );

/** Zeros of the dtype and device of `like`, which no scope owns. Throws DS_OUT_OF_MEMORY. */
export const zeros = (
  shape: readonly number[],
  { dtype, device }: { dtype: DType; device: Device },
): Tensor =>
  held(() => {
    const out = Tensor.empty(shape, dtype, device);
    kernels.fill({ out, value: 0 });
    return out;
  });

/** The sizes of a layer: on this rank, and of the whole layer that adapters belong to. */
interface LayerShape {
  readonly inputs: number;
  readonly outputs: number;
  readonly whole: { readonly inputs: number; readonly outputs: number };
}

/** Returns the sizes of a layer. */
export function shapeOf(base: AdaptableLinear): LayerShape {
  const [outputs, inputs] = leading(
    base instanceof PackedLinear ? base.shape : base.weight.shape,
    2,
  );
  const all = base instanceof PackedLinear ? base.shape : base.weight.region.whole;
  const whole = { outputs: all[0] ?? outputs, inputs: all[1] ?? inputs };
  return { inputs, outputs, whole };
}

/** Returns this rank's part of A [rank, inputs] and B [outputs, rank] of the whole layer. */
export function partOf(base: AdaptableLinear, a: Tensor, b: Tensor): [Tensor, Tensor] {
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
