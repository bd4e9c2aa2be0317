// Resident placement: master weights and optimizer state stay on the device, updates run on its compute stream.

import type { Optimizer } from '../optim/optimizer.js';
import { deviceKernels, type UpdateKernels } from '../optim/update-kernels.js';
import type { DType } from '../runtime/dtype.js';
import * as kernels from '../runtime/kernels.generated.js';
import { held, Tensor } from '../tensor/index.js';
import type { Slot } from './layout.js';
import type { Placement, UpdatePlan } from './placement.js';
import { allocateState, type RangeState, stateSlice, stateTensors } from './range-state.js';
import { sliceFlat, type Unit } from './unit.js';

interface Held {
  /** The unit's own weights when they are f32. */
  master: Tensor;
  ranges: readonly RangeState[];
}

export class ResidentPlacement implements Placement {
  private readonly units = new Map<Unit, Held>();
  private readonly kernels: UpdateKernels = deviceKernels();

  constructor(private readonly optimizer: Optimizer) {}

  adopt(unit: Unit): void {
    const own = unit.weights.dtype === 'f32';
    const allocate = filled.bind(null, unit);
    const master = own ? unit.weights.retain() : allocate([unit.layout.numel], 'f32', 0);
    this.units.set(unit, { master, ranges: allocateState(unit.layout, this.optimizer, allocate) });
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
    for (const [unit, { master, ranges }] of this.units) {
      const grad = unit.grad as Tensor;
      for (const { range, state, starts } of ranges) {
        const { group, places } = range;
        const parts = {
          master: sliceFlat(master, range),
          grad: sliceFlat(grad, range),
          weight: master === unit.weights ? null : sliceFlat(unit.weights, range),
        };
        plan.apply({ group, places, starts, state, control, ...parts }, this.kernels);
        for (const part of Object.values(parts)) part?.release();
      }
      unit.dropGrad();
    }
  }

  awaitWeights(): void {}

  stateOf(unit: Unit, slot: Slot, name: string): Tensor {
    const { master, ranges } = this.units.get(unit) as Held;
    return name === 'master' ? sliceFlat(master, slot, slot.shape) : stateSlice(ranges, slot, name);
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
    for (const [unit, { master, ranges }] of this.units) {
      if (master !== unit.weights) device += master.bytes;
      for (const tensor of stateTensors(ranges)) device += tensor.bytes;
    }
    return { device, host: 0 };
  }

  dispose(): void {
    for (const { master, ranges } of this.units.values()) {
      master.release();
      for (const tensor of stateTensors(ranges)) tensor.release();
    }
    this.units.clear();
  }
}

function filled(unit: Unit, shape: readonly number[], dtype: DType, value: number): Tensor {
  const out = held(() => Tensor.empty(shape, dtype, unit.device));
  kernels.fill({ out, value });
  return out;
}
