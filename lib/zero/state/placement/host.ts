// HostState: optimizer state in pinned host memory. CPU threads update it.
import type { Optimizer } from '../../../optim/optimizer.js';
import { hostKernels, type UpdateKernels } from '../../../optim/update-kernels.js';
import type { Device } from '../../../runtime/device.js';
import type { DType } from '../../../runtime/dtype.js';
import { required } from '../../../runtime/required.js';
import { Event, Stream } from '../../../runtime/stream.js';
import { copyAll, copyFlat, sliceFlat } from '../../../tensor/flat.js';
import type { Tensor } from '../../../tensor/index.js';
import type { Partition } from '../../partition.js';
import { StateInMemory } from '../in-memory.js';
import { allocateFilled, allocatePinned, type Bytes } from '../memory.js';
import type { Placement, PlacementCosts, ShardPart, Traffic } from '../strategies.js';
import type { StateTile } from '../tiles.js';

export interface HostStateOptions {
  /** Maximum elements per tile, a multiple of 64. */
  tile: number;
  /**
   * Whether updates may still read the last gradient when the next one arrives. If so, gradients
   * wait for updates.
   */
  readBefore?: boolean;
}

/**
 * The host placement. Host memory per parameter: 12 bytes of state, and one element that holds the
 * gradient and then the updated weight. 16-bit weights with f32 gradients need 2 bytes more.
 */
export class HostState implements Placement {
  static readonly costs: PlacementCosts = {
    state: 'host',
    updates: 'host',
    windows: 0,
    largestTile: Infinity,
  };
  readonly storage: StateInMemory;
  readonly traffic: HostStreams;
  readonly kernels: UpdateKernels;
  readonly windows?: undefined;
  readonly updatesOnDevice = false;
  readonly receivesGradients = true;

  constructor(
    private readonly device: Device,
    optimizer: Optimizer,
    { tile, readBefore }: HostStateOptions,
  ) {
    this.traffic = new HostStreams(device, readBefore);
    const { order } = this.traffic;
    const allocate = allocateFilled.bind(null, device);
    this.storage = new StateInMemory(device, optimizer, { allocate, tile, order });
    this.kernels = hostKernels(order);
  }

  get bytes(): Bytes {
    return { device: 0, host: this.traffic.bytes, disk: 0 };
  }

  allocate(numel: number, dtype: DType): Tensor {
    return allocatePinned(this.device, [numel], dtype);
  }

  masterMemory({ numel }: Partition): Tensor {
    return allocatePinned(this.device, [numel], 'f32');
  }

  synchronize(): void {
    this.traffic.synchronize();
  }

  dispose(): void {
    this.traffic.dispose();
  }
}

/**
 * Number of gradients that may be in flight: one while backward completes the next, and one more
 * for slow copies.
 */
export const RUNNING_COPIES = 2;

/**
 * Owns tensors until their copies on one stream end. It frees a tensor in the order of compute,
 * after the copy, so backward can reuse the memory for the next gradient. Freed in the order of the
 * copies, the memory would be reusable too late, and the gradients of the whole model would be
 * allocated at once.
 */
export class DepartingTensors {
  private readonly running: { tensor: Tensor; left: Event }[] = [];
  private readonly spareEvents: Event[] = [];

  constructor(
    private readonly device: Device,
    private readonly copies: Stream,
  ) {}

  /**
   * Takes ownership of `tensor`. All its readers must be enqueued on the stream of copies or on
   * compute.
   */
  add(tensor: Tensor): void {
    const left = this.spareEvents.pop() ?? new Event(this.device);
    this.running.push({ tensor, left: left.record(this.copies) });
    if (this.running.length > RUNNING_COPIES) this.returnOldest();
  }

  /**
   * Frees all tensors in the order of the copies. Called after a step, so that compute does not
   * wait.
   */
  flush(): void {
    for (const { tensor, left } of this.running.splice(0)) {
      tensor.buffer.releaseOn(this.copies);
      tensor.release();
      this.spareEvents.push(left);
    }
  }

  dispose(): void {
    this.flush();
    for (const event of this.spareEvents) event.dispose();
  }

  private returnOldest(): void {
    const { tensor, left } = required(this.running.shift());
    this.device.compute.wait(left);
    tensor.release();
    this.spareEvents.push(left);
  }
}

/**
 * Three streams, ordered only by events:
 *   d2h stream    gradient of each partition as backward completes it, tile by tile
 *   order stream  updates, each tile after its gradient
 *   h2d stream    weights, during the update of the next tile; the next forward waits for all
 */
export class HostStreams implements Traffic {
  readonly order: Stream;
  readonly d2h: Stream;
  readonly h2d: Stream;
  /** [4] f32 in host memory. Receives the step decision. */
  readonly control: Tensor;
  /** [4] f32 in memory that the kernels of updates read. Receives the step decision. Owned. */
  kernelControl: Tensor;
  /** Recorded at the end of backward. At other times, it orders compute and updates. */
  readonly computed: Event;
  /** Recorded when updates have read gradients in the memory of backward. */
  private readonly read: Event;
  private readonly departing: DepartingTensors;

  /** `readBefore`: see HostStateOptions. */
  constructor(
    private readonly device: Device,
    private readonly readBefore = false,
  ) {
    this.d2h = Stream.create(device, 'gradients to the host');
    this.order = Stream.create(device, 'updates on the host');
    this.h2d = Stream.create(device, 'weights to the device');
    this.departing = new DepartingTensors(device, this.d2h);
    this.control = allocatePinned(device, [4], 'f32');
    this.kernelControl = this.control.retain();
    this.computed = new Event(device);
    this.read = new Event(device);
  }

  get bytes(): number {
    return this.control.bytes;
  }

  receive(part: ShardPart): void {
    const { d2h } = this;
    const { partition, tiles } = part;
    d2h.wait(partition.ready);
    if (!part.grad) {
      for (const { arrived } of tiles) arrived.record(d2h);
      return;
    }
    d2h.wait(part.uploaded);
    const grad = required(partition.grad);
    for (const { range, arrived, updated } of tiles) {
      if (this.readBefore) d2h.wait(updated);
      copyFlat(part.grad, range, grad, range, d2h);
      arrived.record(d2h);
    }
    this.departing.add(grad.retain());
    partition.dropGrad();
  }

  /** Called after the last gradient of a backward. */
  endBackward(): void {
    this.departing.flush();
    this.computed.record(this.device.compute);
  }

  takeControl(control: Tensor): Tensor {
    this.endBackward();
    this.order.wait(this.computed);
    copyAll(this.kernelControl, control, this.order);
    return this.kernelControl;
  }

  awaitGradient(_: ShardPart, { arrived }: StateTile): void {
    this.order.wait(arrived);
  }

  complete({ updated }: StateTile): void {
    updated.record(this.order);
  }

  holdUploads(event: Event): void {
    this.h2d.wait(event);
  }

  upload({ partition, weight }: ShardPart, { range, updated }: StateTile): void {
    this.h2d.wait(updated);
    copyFlat(partition.weights, range, required(weight), range, this.h2d);
  }

  finish(part: ShardPart): Stream {
    part.uploaded.record(this.h2d);
    part.uploading = true;
    return this.h2d;
  }

  store(part: ShardPart, weights: Tensor): Stream {
    const order = part.partition.storage.store(weights, this.order);
    part.uploaded.record(order);
    return order;
  }

  /** Frees the gradient after updates have read it. */
  dropGradient({ partition }: ShardPart): void {
    partition.grad?.buffer.addReader(this.order, this.read);
    partition.dropGrad();
  }

  awaitWeights(part: ShardPart): void {
    if (!part.uploading) return;
    this.device.compute.wait(part.uploaded);
    part.uploading = false;
  }

  gradOf({ partition, grad: landed }: ShardPart): Tensor | null {
    const { grad } = partition;
    if (!landed) return grad && sliceFlat(grad, { offset: 0, numel: grad.numel });
    for (const stream of [this.d2h, this.order]) stream.synchronize();
    return landed.retain();
  }

  toDevice(to: Tensor, from: Tensor): void {
    const { compute } = this.device;
    compute.wait(this.computed.record(this.order));
    copyAll(to, from, compute);
  }

  fromDevice(to: Tensor, from: Tensor): void {
    const { compute } = this.device;
    copyAll(to, from, compute);
    this.order.wait(this.computed.record(compute));
  }

  synchronize(): void {
    for (const stream of [this.d2h, this.order, this.h2d, this.device.compute]) {
      stream.synchronize();
    }
  }

  dispose(): void {
    this.departing.dispose();
    for (const tensor of [this.control, this.kernelControl]) tensor.release();
    for (const event of [this.computed, this.read]) event.dispose();
    for (const stream of [this.d2h, this.order, this.h2d]) stream.dispose();
  }
}
