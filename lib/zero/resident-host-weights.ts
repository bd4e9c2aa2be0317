// Resident placement over weights in host memory: state and update on the device (offload_param without offload_optimizer).
// Source: DeepSpeed's stage 3, whose offload_param and offload_optimizer are independent.
import type { Optimizer } from '../optim/optimizer.js';
import type { Device } from '../runtime/device.js';
import * as kernels from '../runtime/kernels.generated.js';
import { Event, Stream } from '../runtime/stream.js';
import { held, Tensor } from '../tensor/index.js';
import { DepartingTensors } from './departing-tensors.js';
import type { Partition } from './partition.js';
import { copyFlat } from './pinned.js';
import { ResidentPlacement } from './resident.js';

/**
 * An update changes the masters alone. Finished, a partition is rounded into device memory of its own and leaves for the
 * host on a stream, under the update of the next; the device holds the last few of them.
 */
export class ResidentHostWeightsPlacement extends ResidentPlacement {
  private readonly copies: Stream;
  private readonly computed: Event;
  private readonly departing: DepartingTensors;

  constructor(device: Device, optimizer: Optimizer) {
    super(device, optimizer);
    this.copies = Stream.create(device);
    this.computed = new Event(device);
    this.departing = new DepartingTensors(device, this.copies);
  }

  protected override get updatesInPlace(): boolean {
    return false;
  }

  override finish(partition: Partition): Stream {
    super.finish(partition);
    this.deliver(partition);
    return this.copies;
  }

  /** Called after the last update of a step, before the next forward. */
  override awaitWeights(): void {
    this.departing.flush();
  }

  override refresh(partition: Partition): void {
    this.deliver(partition);
    this.synchronize();
  }

  override synchronize(): void {
    super.synchronize();
    this.departing.flush();
    this.copies.synchronize();
  }

  override dispose(): void {
    this.synchronize();
    super.dispose();
    this.departing.dispose();
    this.computed.dispose();
    this.copies.dispose();
  }

  private deliver(partition: Partition): void {
    const { weights, numel } = partition;
    const { master } = this.of(partition);
    const rounded = held(() => Tensor.empty([numel], weights.dtype, this.device));
    kernels.copy({ in: master, out: rounded });
    this.copies.wait(this.computed.record(this.device.compute));
    const all = { offset: 0, numel };
    copyFlat(weights, all, rounded, all, this.copies);
    this.departing.add(rounded);
  }
}
