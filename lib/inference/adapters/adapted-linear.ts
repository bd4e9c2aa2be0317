// A linear layer with the updates of several adapters. Each row of a step uses one adapter or none.

import type {
  ExtraRows,
  JoinableLinear,
  JointProduct,
  ProductAddition,
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
import { leading, required } from '../../runtime/required.js';
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
   * A of each adapter: [slots, largest rank, inputs of this rank]. Null until Adapters joins the
   * weights, because the memory after the weight may hold A.
   */
  a: Tensor | null;
  /**
   * Shape of A if memory after the weight may hold it. One product then computes x W^T and x A^T.
   * Null: separate memory.
   */
  readonly extraRows: readonly number[] | null;
  /** Zeros after the bias, one per row of A, if A follows the weight in memory. */
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
  /** Returns the adapters of the running forward; null if no row has an adapter. */
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
  get extraRows(): ExtraRows | null {
    const slots = this.#slots;
    const shape = slots.extraRows;
    if (!shape || slots.a || !isPlainLinear(this.#base, slots.b)) return null;
    const place = (rows: Tensor | null, bias: Tensor | null): void => {
      slots.a = rows ?? zeros(shape, slots.b);
      slots.noBias = bias;
    };
    return { shape, place };
  }

  /** @internal See JoinableLinear. */
  get addition(): ProductAddition | null {
    return this.#running();
  }

  /** Maps x [..., inputs] to [..., outputs]. Throws DS_SHAPE; DS_COMM if another rank fails. */
  override forward(x: Tensor): Tensor {
    const base = this.#base;
    const addition = this.#running();
    if (!addition) return base.call(x);
    return scope(() => {
      if (base instanceof RowLinear) {
        return base.shard.around(
          x,
          (ownTensor) => this.addUpdates(ownTensor, addition, null),
          base.bias,
        );
      }
      if (!(base instanceof ColumnLinear)) return this.activate(this.addUpdates(x, addition));
      return base.shard.around(x, (ownTensor) =>
        this.activate(this.addUpdates(ownTensor, addition)),
      );
    });
  }

  /**
   * Returns x W^T, the bias and the updates, before the activation. A RowLinear passes no bias: it
   * adds the bias after the all-reduce.
   */
  private addUpdates(
    x: Tensor,
    addition: ProductAddition,
    bias: Tensor | null = this.#base.bias,
  ): Tensor {
    const base = this.#base;
    const fused = bias === base.bias ? addition.product(x, [this], false) : null;
    if (fused) return fused;
    const sum = base instanceof PackedLinear ? base.project(x, bias) : linear(x, base.weight, bias);
    const out = sum.contiguous();
    addition.add(x, [this], [out.reshape([-1, out.size(-1)])]);
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

/**
 * Returns a view of the layers' weights followed by A of each layer, and its bias. Returns null if
 * they are not adjacent in memory.
 */
export function viewWithFactors(layers: readonly AdaptedLinear[]): [Tensor, Tensor | null] | null {
  const factors = layers.map(({ slots }) => required(slots.a));
  const weight = viewAsOne([...layers.map(({ weight }) => weight), ...factors]);
  if (!layers.some(({ bias }) => bias)) return weight && [weight, null];
  const parts = [...layers.map(({ bias }) => bias), ...layers.map(({ slots }) => slots.noBias)];
  const biases = parts.flatMap((part) => (part ? [part] : []));
  const bias = biases.length === parts.length ? viewAsOne(biases) : null;
  return weight && bias && [weight, bias];
}

/** Returns a view of tensors that are adjacent in memory; null if they are not adjacent. */
function viewAsOne(parts: readonly Tensor[]): Tensor | null {
  const [first] = leading(parts, 1);
  let end = first.offset;
  for (const { buffer, offset, numel } of parts) {
    if (buffer !== first.buffer || offset !== end) return null;
    end += numel;
  }
  const [count, inner] = [end - first.offset, first.shape.slice(1)];
  return first.alias([count / (inner[0] ?? 1), ...inner]);
}
