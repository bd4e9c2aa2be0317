// HostUpdates: updates on CPU threads, overlapped with copies of gradients and weights. Source: Ren
// et al. 2021 (ZeRO-Offload).
import { hostKernels, type UpdateKernels } from '../../optim/update-kernels.js';
import type { Device } from '../../runtime/device.js';
import type { DType } from '../../runtime/dtype.js';
import { Event, Stream } from '../../runtime/stream.js';
import type { Tensor } from '../../tensor/index.js';
import { copyAll, copyFlat } from '../flat.js';
import type { Fragment } from '../layout.js';
import type { Partition } from '../partition.js';
import { DepartingTensors } from './departing-tensors.js';
import type { Home, TileTensors } from './home.js';
import type { Bytes, LentState } from './lent-state.js';
import { pinned } from './pinned.js';
import type { HostTile } from './tiles.js';

/** Host memory of a partition, without its state. */
export interface HostBuffers {
  /** [numel], receives the gradient. */
  grad: Tensor;
  /**
   * [numel] in the weights' dtype, receives the updated weights. May share memory with another
   * tensor.
   */
  weight: Tensor;
  readonly tiles: readonly HostTile[];
  /** All updated weights have reached the device or their storage. */
  readonly uploaded: Event;
  /** The compute stream does not wait for `uploaded` yet. */
  uploading: boolean;
}

/**
 * Three streams, ordered only by events:
 *   d2h stream   gradient of each partition as backward completes it, tile by tile
 *   host stream  updates on CPU threads, each tile after its gradient
 *   h2d stream   weights, during the update of the next tile; the unit's next forward waits for all
 */
export abstract class HostUpdates<Buffers extends HostBuffers> implements Home {
  readonly kernels: UpdateKernels;
  /** The stream of updates. */
  readonly host: Stream;
  /** The stream of uploaded weights. */
  readonly h2d: Stream;
  /** [4] f32, receives the control from the device. */
  readonly control: Tensor;
  /** The end of backward after endBackward(); otherwise a mark between compute and host work. */
  readonly computed: Event;
  protected readonly buffers = new Map<Partition, Buffers>();
  protected readonly d2h: Stream;
  private readonly departing: DepartingTensors;

  /**
   * `readBefore`: an update older than the last one has read the gradient memory, so a gradient
   * waits for its tiles.
   */
  constructor(
    protected readonly device: Device,
    private readonly readBefore = false,
  ) {
    this.d2h = Stream.create(device, 'gradients to the host');
    this.host = Stream.create(device, 'updates on the host');
    this.h2d = Stream.create(device, 'weights to the device');
    this.kernels = this.kernelsOn(this.host);
    this.departing = new DepartingTensors(device, this.d2h);
    this.control = pinned(device, [4], 'f32');
    this.computed = new Event(device);
  }

  /** Kernels in the order of `updates`. */
  protected kernelsOn(updates: Stream): UpdateKernels {
    return hostKernels(updates);
  }

  abstract readonly bytes: Bytes;
  abstract readonly lendsCopies: boolean;
  abstract adopt(partition: Partition): void;
  abstract writeMaster(partition: Partition, fragment: Fragment, values: Tensor): void;
  abstract acquire(partition: Partition, tile: HostTile): TileTensors;
  abstract release(tile: TileTensors): void;
  abstract lend(partition: Partition, fragment: Fragment, name: string): LentState;
  abstract refresh(partition: Partition): void;

  receive(partition: Partition): void {
    const { d2h } = this;
    const buffers = this.buffersOf(partition);
    d2h.wait(partition.ready);
    d2h.wait(buffers.uploaded);
    const grad = partition.grad as Tensor;
    for (const { range, arrived, updated } of buffers.tiles) {
      if (this.readBefore) d2h.wait(updated);
      copyFlat(buffers.grad, range, grad, range, d2h);
      arrived.record(d2h);
    }
    this.departing.add(grad.retain());
    partition.dropGrad();
  }

  /** Called after the last gradient of backward. */
  endBackward(): void {
    this.departing.flush();
    this.computed.record(this.device.compute);
  }

  takeControl(control: Tensor): Tensor {
    this.endBackward();
    this.host.wait(this.computed);
    copyAll(this.control, control, this.host);
    return this.control;
  }

  tilesOf(partition: Partition): Buffers['tiles'] {
    return this.buffersOf(partition).tiles;
  }

  deliver(partition: Partition, tile: HostTile): void {
    tile.updated.record(this.host);
    this.upload(partition, tile);
  }

  finish(partition: Partition): Stream {
    const buffers = this.buffersOf(partition);
    buffers.uploaded.record(this.h2d);
    buffers.uploading = true;
    return this.h2d;
  }

  /** finish() for weights outside of the device: copies all of them to their storage. */
  protected store(partition: Partition): Stream {
    const { weight, uploaded } = this.buffersOf(partition);
    const order = partition.place.store(weight, this.host);
    uploaded.record(order);
    return order;
  }

  /** Uploads the weights of all tiles, after their enqueued updates and after `after`. */
  uploadAll(partition: Partition, after: Event | null): void {
    if (after) this.h2d.wait(after);
    for (const tile of this.tilesOf(partition)) this.upload(partition, tile);
    this.finish(partition);
  }

  protected upload(partition: Partition, { range, updated }: HostTile): void {
    this.h2d.wait(updated);
    copyFlat(partition.weights, range, this.buffersOf(partition).weight, range, this.h2d);
  }

  awaitWeights(partition: Partition): void {
    const buffers = this.buffersOf(partition);
    if (!buffers.uploading) return;
    this.device.compute.wait(buffers.uploaded);
    buffers.uploading = false;
  }

  gradOf(partition: Partition): Tensor | null {
    for (const stream of [this.d2h, this.host]) stream.synchronize();
    return this.buffersOf(partition).grad.retain();
  }

  allocate(numel: number, dtype: DType): Tensor {
    return pinned(this.device, [numel], dtype);
  }

  toDevice(to: Tensor, from: Tensor): void {
    const { compute } = this.device;
    compute.wait(this.computed.record(this.host));
    copyAll(to, from, compute);
  }

  toHome(to: Tensor, from: Tensor): void {
    const { compute } = this.device;
    copyAll(to, from, compute);
    this.host.wait(this.computed.record(compute));
  }

  synchronize(): void {
    for (const stream of [this.d2h, this.host, this.h2d, this.device.compute]) stream.synchronize();
    for (const { uploaded } of this.buffers.values()) uploaded.synchronize();
  }

  dispose(): void {
    this.synchronize();
    for (const buffers of this.buffers.values()) {
      this.disposeBuffers(buffers);
      buffers.uploaded.dispose();
    }
    this.buffers.clear();
    this.departing.dispose();
    this.control.release();
    this.computed.dispose();
    for (const stream of [this.d2h, this.host, this.h2d]) stream.dispose();
  }

  /** Releases the tensors and tiles of a partition. */
  protected abstract disposeBuffers(buffers: Buffers): void;

  /** For schedules on host memory. */
  buffersOf(partition: Partition): Buffers {
    return this.buffers.get(partition) as Buffers;
  }
}

/**
 * Returns the memory for updated weights, with a new reference: one of `memories` with their dtype,
 * else new pinned memory.
 */
export function memoryForWeights(
  { device, unit, numel }: Partition,
  memories: readonly Tensor[],
): Tensor {
  const alike = memories.find(({ dtype }) => dtype === unit.dtype);
  return alike?.retain() ?? pinned(device, [numel], unit.dtype);
}
