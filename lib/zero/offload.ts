// Offload placement: master weights and optimizer state in pinned host memory, Adam on host threads.
// Source: Ren et al. 2021 (ZeRO-Offload), with the clipping factor known before the first update ("deferred").
import type { Optimizer } from '../optim/optimizer.js';
import { hostKernels, type UpdateKernels } from '../optim/update-kernels.js';
import type { Device } from '../runtime/device.js';
import * as kernels from '../runtime/kernels.generated.js';
import { Event, Stream } from '../runtime/stream.js';
import { held, Tensor } from '../tensor/index.js';
import type { Slot } from './layout.js';
import { copyFlat, pinned, pinnedFilled } from './pinned.js';
import type { Placement, UpdatePlan } from './placement.js';
import { allocateState, type RangeState, stateSlice, stateTensors } from './range-state.js';
import { sliceFlat, type Unit } from './unit.js';

/** A unit's host side. `grad` receives the gradient and is then overwritten by the updated weights. */
interface HostUnit {
  master: Tensor;
  grad: Tensor;
  ranges: readonly RangeState[];
  /** The gradient has reached the host. */
  arrived: Event;
  /** The updated weights have reached the device. */
  uploaded: Event;
  /** The compute stream has not yet been told to wait for `uploaded`. */
  pending: boolean;
}

/**
 * Per step, ordered by events alone:
 *   d2h stream   gradient of each unit as backward completes it, then the control
 *   host stream  Adam of each unit in forward order, on host threads (after its gradient and the control)
 *   h2d stream   its weights, under the Adam of the next unit; the unit's next forward waits for them
 * Host memory per parameter: 12 bytes of state and one gradient element, which the update turns into the weight to
 * upload in place (f32 weights are uploaded from the master instead).
 */
export class OffloadPlacement implements Placement {
  private readonly units = new Map<Unit, HostUnit>();
  private readonly d2h: Stream;
  private readonly host: Stream;
  private readonly h2d: Stream;
  private readonly kernels: UpdateKernels;
  private readonly control: Tensor;
  private readonly computed: Event;
  private readonly updated: Event;

  constructor(
    private readonly device: Device,
    private readonly optimizer: Optimizer,
  ) {
    this.d2h = Stream.create(device);
    this.host = Stream.create(device);
    this.h2d = Stream.create(device);
    this.kernels = hostKernels(this.host);
    this.control = pinned(device, [4], 'f32');
    this.computed = new Event(device);
    this.updated = new Event(device);
  }

  adopt(unit: Unit): void {
    const shape = [unit.layout.numel];
    const host: HostUnit = {
      master: pinned(this.device, shape, 'f32'),
      grad: pinned(this.device, shape, unit.weights.dtype),
      ranges: allocateState(unit.layout, this.optimizer, pinnedFilled.bind(null, this.device)),
      arrived: new Event(this.device),
      uploaded: new Event(this.device),
      pending: false,
    };
    this.units.set(unit, host);
    unit.adopt((slot, values) =>
      copyFlat(host.master, slot, values, { offset: 0, numel: slot.numel }, this.device.compute),
    );
    this.device.compute.synchronize();
  }

  prepare(): void {}

  gradReady(unit: Unit): void {
    const host = this.units.get(unit) as HostUnit;
    this.d2h.wait(this.computed.record(this.device.compute));
    this.d2h.wait(host.uploaded);
    const grad = unit.grad as Tensor;
    const all = { offset: 0, numel: unit.layout.numel };
    copyFlat(host.grad, all, grad, all, this.d2h);
    host.arrived.record(this.d2h);
    grad.buffer.releaseOn(this.d2h);
    unit.dropGrad();
  }

  update(control: Tensor, plan: UpdatePlan): void {
    this.d2h.wait(this.computed.record(this.device.compute));
    const four = { offset: 0, numel: 4 };
    copyFlat(this.control, four, control, four, this.d2h);
    this.host.wait(this.updated.record(this.d2h));
    for (const [unit, host] of this.units) {
      this.host.wait(host.arrived);
      for (const range of host.ranges) this.updateRange(host, range, plan);
      this.upload(unit, host);
    }
  }

  private updateRange(
    { master, grad }: HostUnit,
    { range, state, starts }: RangeState,
    plan: UpdatePlan,
  ): void {
    const { group, places } = range;
    const part = sliceFlat(grad, range);
    const parts = { master: sliceFlat(master, range), grad: part };
    const weight = grad.dtype === 'f32' ? null : part;
    const tensors = { group, places, starts, state, control: this.control, weight, ...parts };
    plan.apply(tensors, this.kernels);
    for (const slice of Object.values(parts)) slice.release();
  }

  private upload(unit: Unit, host: HostUnit): void {
    this.h2d.wait(this.updated.record(this.host));
    const all = { offset: 0, numel: unit.layout.numel };
    const source = unit.weights.dtype === 'f32' ? host.master : host.grad;
    copyFlat(unit.weights, all, source, all, this.h2d);
    host.uploaded.record(this.h2d);
    host.pending = true;
  }

  awaitWeights(unit: Unit): void {
    const host = this.units.get(unit) as HostUnit;
    if (!host.pending) return;
    this.device.compute.wait(host.uploaded);
    host.pending = false;
  }

  stateOf(unit: Unit, slot: Slot, name: string): Tensor {
    const { master, ranges } = this.units.get(unit) as HostUnit;
    return name === 'master' ? sliceFlat(master, slot, slot.shape) : stateSlice(ranges, slot, name);
  }

  publish(unit: Unit): void {
    const { master } = this.units.get(unit) as HostUnit;
    const wide = held(() => Tensor.empty(master.shape, 'f32', this.device));
    const all = { offset: 0, numel: unit.layout.numel };
    copyFlat(wide, all, master, all, this.device.compute);
    kernels.copy({ in: wide, out: unit.weights });
    wide.release();
    this.device.compute.synchronize();
  }

  synchronize(): void {
    for (const stream of [this.d2h, this.host, this.h2d, this.device.compute]) stream.synchronize();
  }

  get bytes(): { device: number; host: number } {
    let host = this.control.bytes;
    for (const { master, grad, ranges } of this.units.values()) {
      host += master.bytes + grad.bytes;
      for (const tensor of stateTensors(ranges)) host += tensor.bytes;
    }
    return { device: 0, host };
  }

  dispose(): void {
    this.synchronize();
    for (const { master, grad, ranges, arrived, uploaded } of this.units.values()) {
      for (const tensor of [master, grad, ...stateTensors(ranges)]) tensor.release();
      arrived.dispose();
      uploaded.dispose();
    }
    this.units.clear();
    this.control.release();
    for (const event of [this.computed, this.updated]) event.dispose();
    for (const stream of [this.d2h, this.host, this.h2d]) stream.dispose();
  }
}
