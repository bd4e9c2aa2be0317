// OwnState: master weights and optimizer state of one parameter in a StandaloneOptimizer.

import type { Device } from '../runtime/device.js';
import type { DType } from '../runtime/dtype.js';
import * as kernels from '../runtime/kernels.generated.js';
import { required } from '../runtime/required.js';
import { numel as sizeOf } from '../runtime/view.js';
import { cast, compare, Tensor, where, within } from '../tensor/index.js';
import { toRowMajor } from '../tensor/ops/shapes.js';
import { type DeclaredState, declaredState, savedState } from './declared-state.js';
import type { Optimizer, ParameterPlace, UpdateTensors } from './optimizer.js';

/**
 * The state of one parameter. No scope owns its tensors: dispose() or garbage collection frees
 * them.
 */
export class OwnState {
  /** Number of updates of this parameter. */
  step = 0;

  private constructor(
    readonly created: { readonly device: Device; readonly dtype: DType },
    readonly place: ParameterPlace,
    /** [numel] f32. Null for an f32 parameter, which is its own master. */
    readonly master: Tensor | null,
    private readonly declared: DeclaredState,
    private readonly tensors: Pick<UpdateTensors, 'state' | 'sums' | 'starts' | 'control'>,
  ) {}

  /** Returns the initial state of a parameter of `group`. */
  static of(
    optimizer: Optimizer,
    parameter: Tensor,
    { group, name }: { group: number; name: string },
  ): OwnState {
    const { device, dtype, numel, shape } = parameter;
    return within(null, () => {
      const fillTensor = (size: number, kind: DType, value: number): Tensor => {
        const out = Tensor.empty([size], kind, device);
        kernels.fill({ out, value });
        return out;
      };
      const declared = declaredState(optimizer, group, shape);
      const state = Object.entries(declared).map(([key, tensor]) => [
        key,
        fillTensor(sizeOf(tensor.shape), tensor.dtype, tensor.initial),
      ]);
      const sums = optimizer.sumsPerRound?.(group, shape) ?? [];
      return new OwnState(
        { device, dtype },
        { name, shape, from: 0, offset: 0, numel },
        dtype === 'f32' ? null : fillTensor(numel, 'f32', Number.NaN),
        declared,
        {
          state: Object.fromEntries(state),
          sums: sums.map((count) => Tensor.empty([count], 'f64', device)),
          starts: Tensor.from(BigInt64Array.of(0n, BigInt(numel)), { device }),
          control: Tensor.from([1, 1, 0, 1], { device }),
        },
      );
    });
  }

  /**
   * Returns the tensors for an update of `parameter`, which must have a gradient. The current scope
   * owns the views.
   */
  tensorsOf(parameter: Tensor, group: number): UpdateTensors {
    const { place, master, tensors } = this;
    const flat = [place.numel];
    const ownTensor = parameter.alias(flat);
    const grad = required(parameter.grad);
    if (master) adoptChanges(master, ownTensor);
    return {
      group,
      master: master ?? ownTensor,
      grad: toRowMajor(grad).alias(flat),
      weight: master && ownTensor,
      ...tensors,
      places: [place],
    };
  }

  /** The tensors to save, by name: each is flat, with the shape of the whole tensor. */
  get savedTensors(): Record<string, { tensor: Tensor; shape: readonly number[] }> {
    const { master, place } = this;
    const { state } = this.tensors;
    const saved = Object.entries(savedState(this.declared)).map(([name, { shape }]) => [
      name,
      { tensor: state[name], shape },
    ]);
    const own = master ? { master: { tensor: master, shape: place.shape } } : {};
    return { ...own, ...Object.fromEntries(saved) };
  }

  dispose(): void {
    const { state, sums, starts, control } = this.tensors;
    const all = [...Object.values(state), ...sums, starts, control];
    for (const tensor of all) tensor.dispose();
    this.master?.dispose();
  }
}

/**
 * If other code changed the parameter since the last update, takes over its values: an element of
 * `weight` that differs from the rounded master replaces it.
 */
function adoptChanges(master: Tensor, weight: Tensor): void {
  const isOurs = compare('eq', cast(master, weight.dtype), weight);
  kernels.copy({ in: where(isOurs, master, cast(weight, 'f32')), out: master });
}
