// Resident placement: master weights and optimizer state stay on the device, updates run on its compute stream.

import type { Optimizer, UpdateTensors } from '../optim/optimizer.js';
import type { Device } from '../runtime/device.js';
import type { DType } from '../runtime/dtype.js';
import * as kernels from '../runtime/kernels.generated.js';
import type { Stream } from '../runtime/stream.js';
import { held, Tensor } from '../tensor/index.js';
import { sliceFlat } from './flat.js';
import type { GroupRange, Piece } from './layout.js';
import type { Partition } from './partition.js';
import type { OpenPlacement, Published, UpdatePlan } from './placement.js';
import {
  allocateState,
  type RangeState,
  slicePiece,
  stateSlice,
  stateTensors,
} from './range-state.js';
import { DeviceSite } from './update-site.js';

interface Held {
  /** The partition's own weights when they are f32. */
  master: Tensor;
  /** What an update writes rounded: the partition's weights; null where that is left to finish(), or `master` is them. */
  weight: Tensor | null;
  ranges: readonly RangeState[];
}

export class ResidentPlacement implements OpenPlacement {
  private readonly kept = new Map<Partition, Held>();
  readonly site: DeviceSite;

  constructor(
    protected readonly device: Device,
    private readonly optimizer: Optimizer,
  ) {
    this.site = new DeviceSite(device);
  }

  adopt(partition: Partition): void {
    const allocate = filled.bind(null, partition.device);
    const { weights, numel } = partition;
    const own = this.updatesInPlace ? weights : null;
    const master = own?.dtype === 'f32' ? own.retain() : allocate([numel], 'f32', 0);
    const weight = own === master ? null : own;
    const ranges = allocateState(partition, this.optimizer, allocate);
    this.kept.set(partition, { master, weight, ranges });
  }

  /** Whether updates write the partition's weights, which then lie on the device. */
  protected get updatesInPlace(): boolean {
    return true;
  }

  writeMaster(partition: Partition, piece: Piece, values: Tensor): void {
    const place = sliceFlat(this.of(partition).master, piece);
    kernels.copy({ in: values, out: place });
    place.release();
  }

  prepare(): void {}

  gradReady(): void {}

  update(control: Tensor, plan: UpdatePlan, published: Published): void {
    for (const partition of this.kept.keys()) {
      this.eachRange(partition, control, (range) => plan.apply(range, this.site.kernels));
      published(partition, this.finish(partition));
    }
  }

  takeControl(control: Tensor): Tensor {
    return control;
  }

  eachRange(
    partition: Partition,
    control: Tensor,
    body: (tensors: UpdateTensors, range: GroupRange) => void,
  ): void {
    const { master, weight, ranges } = this.of(partition);
    const grad = partition.grad as Tensor;
    partition.device.compute.wait(partition.ready);
    for (const { range, ...kept } of ranges) {
      const { group, places } = range;
      const parts = {
        master: sliceFlat(master, range),
        grad: sliceFlat(grad, range),
        weight: weight && sliceFlat(weight, range),
      };
      body({ group, places, ...kept, control, ...parts }, range);
      for (const part of Object.values(parts)) part?.release();
    }
  }

  finish(partition: Partition): Stream {
    partition.dropGrad();
    return partition.device.compute;
  }

  awaitWeights(): void {}

  stateOf(partition: Partition, piece: Piece, name: string): Tensor {
    const { master, ranges } = this.of(partition);
    return name === 'master' ? slicePiece(master, piece) : stateSlice(ranges, piece, name);
  }

  gradOf({ grad }: Partition): Tensor | null {
    return grad && sliceFlat(grad, { offset: 0, numel: grad.numel });
  }

  changed(): void {}

  refresh(partition: Partition): void {
    const { master } = this.of(partition);
    if (master !== partition.weights) kernels.copy({ in: master, out: partition.weights });
  }

  synchronize(): void {
    for (const { device } of this.kept.keys()) device.compute.synchronize();
  }

  get bytes(): { device: number; host: number } {
    let device = 0;
    for (const [{ weights }, { master, ranges }] of this.kept) {
      if (master !== weights) device += master.bytes;
      for (const tensor of stateTensors(ranges)) device += tensor.bytes;
    }
    return { device, host: 0 };
  }

  dispose(): void {
    for (const { master, ranges } of this.kept.values()) {
      master.release();
      for (const tensor of stateTensors(ranges)) tensor.release();
    }
    this.kept.clear();
  }

  protected of(partition: Partition): Held {
    return this.kept.get(partition) as Held;
  }
}

function filled(device: Device, shape: readonly number[], dtype: DType, value: number): Tensor {
  const out = held(() => Tensor.empty(shape, dtype, device));
  kernels.fill({ out, value });
  return out;
}
