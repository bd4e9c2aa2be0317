// Offload placement: master weights and optimizer state in pinned host memory, Adam on host threads.
// Source: Ren et al. 2021 (ZeRO-Offload), with the clipping factor known before the first update ("deferred").
import type { Optimizer } from '../optim/optimizer.js';
import { hostKernels, type UpdateKernels } from '../optim/update-kernels.js';
import type { Device } from '../runtime/device.js';
import { Event, Stream } from '../runtime/stream.js';
import type { Tensor } from '../tensor/index.js';
import type { Piece, Range } from './layout.js';
import type { Partition } from './partition.js';
import { copyFlat, pinned, pinnedFilled, uploadRounded } from './pinned.js';
import type { Placement, Published, UpdatePlan } from './placement.js';
import {
  allocateState,
  type RangeState,
  slicePiece,
  stateSlice,
  stateTensors,
} from './range-state.js';
import { sliceFlat } from './unit.js';

/** A partition's host side. `grad` receives the gradient and is then overwritten by the updated weights. */
export interface HostPart {
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
 *   d2h stream   gradient of each partition as backward completes it, then the control
 *   host stream  the update of each partition in forward order, on host threads (after its gradient and the control)
 *   h2d stream   its weights, under the Adam of the next unit; the unit's next forward waits for them
 * Host memory per parameter: 12 bytes of state and one gradient element, which the update turns into the weight to
 * upload in place (f32 weights are uploaded from the master instead).
 */
export class OffloadPlacement implements Placement {
  private readonly parts = new Map<Partition, HostPart>();
  private readonly d2h: Stream;
  protected readonly host: Stream;
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

  adopt(partition: Partition): void {
    const { device } = this;
    const shape = [partition.numel];
    this.parts.set(partition, {
      master: pinned(device, shape, 'f32'),
      grad: pinned(device, shape, partition.weights.dtype),
      ranges: allocateState(partition, this.optimizer, pinnedFilled.bind(null, device)),
      arrived: new Event(device),
      uploaded: new Event(device),
      pending: false,
    });
  }

  writeMaster(partition: Partition, piece: Piece, values: Tensor): void {
    const { master } = this.hostOf(partition);
    copyFlat(master, piece, values, { offset: 0, numel: piece.numel }, this.device.compute);
  }

  prepare(): void {}

  gradReady(partition: Partition): void {
    const host = this.hostOf(partition);
    this.d2h.wait(partition.ready);
    this.d2h.wait(host.uploaded);
    const grad = partition.grad as Tensor;
    const all = { offset: 0, numel: partition.numel };
    copyFlat(host.grad, all, grad, all, this.d2h);
    host.arrived.record(this.d2h);
    grad.buffer.releaseOn(this.d2h);
    partition.dropGrad();
  }

  update(control: Tensor, plan: UpdatePlan, published: Published): void {
    this.d2h.wait(this.computed.record(this.device.compute));
    const four = { offset: 0, numel: 4 };
    copyFlat(this.control, four, control, four, this.d2h);
    this.host.wait(this.updated.record(this.d2h));
    for (const [partition, host] of this.parts) {
      this.host.wait(host.arrived);
      for (const range of host.ranges) this.updateRange(partition, host, range, plan);
      published(partition, this.deliver(partition, host));
    }
  }

  /** What an update of `range` writes the weights to; null where the master is what will be read. */
  protected weightOf(_partition: Partition, { grad }: HostPart, range: Range): Tensor | null {
    return grad.dtype === 'f32' ? null : sliceFlat(grad, range);
  }

  /** The weights were updated in the order of the host stream: brings them to the device. Returns in whose order. */
  protected deliver(partition: Partition, host: HostPart): Stream {
    this.h2d.wait(this.updated.record(this.host));
    const { weights, numel } = partition;
    const all = { offset: 0, numel };
    const source = weights.dtype === 'f32' ? host.master : host.grad;
    copyFlat(weights, all, source, all, this.h2d);
    host.uploaded.record(this.h2d);
    host.pending = true;
    return this.h2d;
  }

  private updateRange(
    partition: Partition,
    host: HostPart,
    { range, ...kept }: RangeState,
    plan: UpdatePlan,
  ): void {
    const { group, places } = range;
    const parts = {
      master: sliceFlat(host.master, range),
      grad: sliceFlat(host.grad, range),
      weight: this.weightOf(partition, host, range),
    };
    const { control } = this;
    plan.apply({ group, places, ...kept, control, ...parts }, this.kernels);
    for (const slice of Object.values(parts)) slice?.release();
  }

  awaitWeights(partition: Partition): void {
    const host = this.hostOf(partition);
    if (!host.pending) return;
    this.device.compute.wait(host.uploaded);
    host.pending = false;
  }

  stateOf(partition: Partition, piece: Piece, name: string): Tensor {
    const { master, ranges } = this.hostOf(partition);
    return name === 'master' ? slicePiece(master, piece) : stateSlice(ranges, piece, name);
  }

  gradOf(partition: Partition): Tensor {
    this.d2h.synchronize();
    return this.hostOf(partition).grad.retain();
  }

  changed(): void {}

  refresh(partition: Partition): void {
    const { master } = this.hostOf(partition);
    uploadRounded(master, partition.weights);
  }

  synchronize(): void {
    for (const stream of [this.d2h, this.host, this.h2d, this.device.compute]) stream.synchronize();
  }

  get bytes(): { device: number; host: number } {
    let host = this.control.bytes;
    for (const { master, grad, ranges } of this.parts.values()) {
      host += master.bytes + grad.bytes;
      for (const tensor of stateTensors(ranges)) host += tensor.bytes;
    }
    return { device: 0, host };
  }

  dispose(): void {
    this.synchronize();
    for (const { master, grad, ranges, arrived, uploaded } of this.parts.values()) {
      for (const tensor of [master, grad, ...stateTensors(ranges)]) tensor.release();
      arrived.dispose();
      uploaded.dispose();
    }
    this.parts.clear();
    this.control.release();
    for (const event of [this.computed, this.updated]) event.dispose();
    for (const stream of [this.d2h, this.host, this.h2d]) stream.dispose();
  }

  protected hostOf(partition: Partition): HostPart {
    return this.parts.get(partition) as HostPart;
  }
}
