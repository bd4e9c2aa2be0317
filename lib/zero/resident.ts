// Resident placement: master weights and optimizer state stay on the device, updates run on its compute stream.

import { deviceKernels, type UpdateKernels } from '../optim/update-kernels.js';
import * as kernels from '../runtime/kernels.generated.js';
import { held, Tensor } from '../tensor/index.js';
import type { Slot } from './layout.js';
import type { Placement, UpdatePlan } from './placement.js';
import { sliceFlat, type Unit } from './unit.js';

interface Held {
  /** The unit's own weights when they are f32. */
  master: Tensor;
  state: Record<string, Tensor>;
}

export class ResidentPlacement implements Placement {
  private readonly units = new Map<Unit, Held>();
  private readonly kernels: UpdateKernels = deviceKernels();

  constructor(private readonly stateNames: readonly string[]) {}

  adopt(unit: Unit): void {
    const own = unit.weights.dtype === 'f32';
    const master = own ? unit.weights.retain() : zerosLike(unit);
    const state = Object.fromEntries(this.stateNames.map((name) => [name, zerosLike(unit)]));
    this.units.set(unit, { master, state });
    unit.adopt((slot, values) => {
      if (own) return;
      const place = sliceFlat(master, slot, slot.shape);
      kernels.copy({ in: values, out: place });
      place.release();
    });
  }

  prepare(): void {}

  gradReady(): void {}

  update(control: Tensor, plan: UpdatePlan): void {
    for (const [unit, { master, state }] of this.units) {
      const grad = unit.grad as Tensor;
      for (const range of unit.layout.groups) {
        const cut = (flat: Tensor): Tensor => sliceFlat(flat, range);
        const parts = {
          master: cut(master),
          grad: cut(grad),
          weight: master === unit.weights ? null : cut(unit.weights),
          state: mapValues(state, cut),
        };
        plan.apply({ group: range.group, control, ...parts }, this.kernels);
        for (const part of [parts.master, parts.grad, parts.weight]) part?.release();
        for (const part of Object.values(parts.state)) part.release();
      }
      unit.dropGrad();
    }
  }

  awaitWeights(): void {}

  stateOf(unit: Unit, slot: Slot, name: string): Tensor {
    const { master, state } = this.units.get(unit) as Held;
    return sliceFlat(name === 'master' ? master : (state[name] as Tensor), slot, slot.shape);
  }

  publish(unit: Unit): void {
    const { master } = this.units.get(unit) as Held;
    if (master !== unit.weights) kernels.copy({ in: master, out: unit.weights });
  }

  synchronize(): void {
    for (const unit of this.units.keys()) unit.device.compute.synchronize();
  }

  get bytes(): { device: number; host: number } {
    let device = 0;
    for (const [unit, { master, state }] of this.units) {
      if (master !== unit.weights) device += master.bytes;
      for (const tensor of Object.values(state)) device += tensor.bytes;
    }
    return { device, host: 0 };
  }

  dispose(): void {
    for (const { master, state } of this.units.values()) {
      master.release();
      for (const tensor of Object.values(state)) tensor.release();
    }
    this.units.clear();
  }
}

/** Applies `f` to every value of a record. */
export function mapValues<A, B>(record: Record<string, A>, f: (value: A) => B): Record<string, B> {
  return Object.fromEntries(Object.entries(record).map(([key, value]) => [key, f(value)]));
}

function zerosLike(unit: Unit): Tensor {
  const out = held(() => Tensor.empty([unit.layout.numel], 'f32', unit.device));
  kernels.fill({ out, value: 0 });
  return out;
}
