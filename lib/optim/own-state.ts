// What a standalone optimizer keeps for one parameter.
import type { Device } from '../runtime/device.js';
import type { DType } from '../runtime/dtype.js';
import * as kernels from '../runtime/kernels.generated.js';
import { cast, compare, Tensor, where, within } from '../tensor/index.js';
import type { Optimizer, ParameterPlace, UpdateTensors } from './optimizer.js';

/** Tensors without an owner: they are freed by dispose(), or when nobody refers to them. */
export class OwnState {
  /** Updates of the parameter so far. */
  step = 0;

  private constructor(
    readonly home: { readonly device: Device; readonly dtype: DType },
    readonly place: ParameterPlace,
    /** [numel] f32; null for an f32 parameter, which is its own. */
    readonly master: Tensor | null,
    /** [numel] f32 by name. */
    readonly state: Readonly<Record<string, Tensor>>,
    private readonly extras: Pick<UpdateTensors, 'scalars' | 'sums' | 'starts' | 'control'>,
  ) {}

  /** Initial state of a parameter of `group`. */
  static of(
    optimizer: Optimizer,
    parameter: Tensor,
    { group, name }: { group: number; name: string },
  ): OwnState {
    const { device, dtype, numel, shape } = parameter;
    return within(null, () => {
      const filled = (size: number, value: number): Tensor => {
        const out = Tensor.empty([size], 'f32', device);
        kernels.fill({ out, value });
        return out;
      };
      const named = (values: Readonly<Record<string, number>>, size: number) =>
        Object.fromEntries(
          Object.entries(values).map(([key, value]) => [key, filled(size, value)]),
        );
      const master = dtype === 'f32' ? null : filled(numel, Number.NaN);
      const sums = optimizer.sumsPerParameter?.(group) ?? 0;
      return new OwnState(
        { device, dtype },
        { name, shape, offset: 0, numel },
        master,
        named(optimizer.initialState(group), numel),
        {
          scalars: named(optimizer.initialScalars?.(group) ?? {}, 1),
          sums: sums > 0 ? Tensor.empty([1, sums], 'f64', device) : null,
          starts: Tensor.from(BigInt64Array.of(0n, BigInt(numel)), { device }),
          control: Tensor.from([1, 1, 0, 1], { device }),
        },
      );
    });
  }

  /** For an update of `parameter`, which has a gradient; in the current scope. */
  tensorsOf(parameter: Tensor, group: number): UpdateTensors {
    const { place, master, state, extras } = this;
    const flat = [place.numel];
    const own = parameter.alias(flat);
    const grad = parameter.grad as Tensor;
    if (master) adoptChanges(master, own);
    return {
      group,
      master: master ?? own,
      grad: grad.isContiguous ? grad.alias(flat) : packed(grad).alias(flat),
      weight: master && own,
      state,
      ...extras,
      places: [place],
    };
  }

  /** The tensors that a checkpoint keeps, by name. */
  get saved(): Record<string, Tensor> {
    return { ...(this.master ? { master: this.master } : {}), ...this.state };
  }

  dispose(): void {
    const { scalars, sums, starts, control } = this.extras;
    const kept = [...Object.values(this.saved), ...Object.values(scalars), starts, control];
    for (const tensor of kept) tensor.dispose();
    sums?.dispose();
  }
}

function packed(x: Tensor): Tensor {
  const out = Tensor.emptyLike(x);
  kernels.copy({ in: x, out });
  return out;
}

/** Where `weight` is not `master` rounded, somebody has written it since: it holds from now on. */
function adoptChanges(master: Tensor, weight: Tensor): void {
  const isOurs = compare('eq', cast(master, weight.dtype), weight);
  kernels.copy({ in: where(isOurs, master, cast(weight, 'f32')), out: master });
}
