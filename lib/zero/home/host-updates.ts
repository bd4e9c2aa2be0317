// Updates on host threads, wherever their state lives: gradients come down and weights go up beside
// them. Source: Ren et al. 2021 (ZeRO-Offload).
import { hostKernels, type UpdateKernels } from '../../optim/update-kernels.js';
import type { Device } from '../../runtime/device.js';
import type { DType } from '../../runtime/dtype.js';
import { Event, Stream } from '../../runtime/stream.js';
import type { Tensor } from '../../tensor/index.js';
import { copyAll, copyFlat } from '../flat.js';
import type { Piece } from '../layout.js';
import type { Partition } from '../partition.js';
import { DepartingTensors } from './departing-tensors.js';
import type { Home, TileTensors } from './home.js';
import type { Bytes, LentState } from './lent-state.js';
import { pinned } from './pinned.js';
import type { HostTile } from './tiles.js';

/** A partition's host side, but for its state. */
export interface UpdatedPart {
  /** [numel], receives the gradient. */
  grad: Tensor;
  /**
   * [numel] in the weights' dtype, receives the updated weights; may be memory that has another
   * use.
   */
  weight: Tensor;
  readonly tiles: readonly HostTile[];
  /** All updated weights have reached the device, or where else they live. */
  readonly uploaded: Event;
  /** The compute stream has not yet been told to wait for `uploaded`. */
  uploading: boolean;
}

/**
 * Three streams, ordered by events alone:
 *   d2h stream   gradient of each partition as backward completes it, tile by tile
 *   host stream  updates on host threads, each tile after its gradient
 *   h2d stream   weights, under the update of the next tile; the unit's next forward waits for all
 */
export abstract class HostUpdates<Part extends UpdatedPart> implements Home {
  readonly kernels: UpdateKernels;
  /** In which updates run. */
  readonly host: Stream;
  /** In which weights leave. */
  readonly h2d: Stream;
  /** [4] f32, receives what the device has decided. */
  readonly control: Tensor;
  /**
   * The end of backward, once endBackward() has marked it; between compute and host work otherwise.
   */
  readonly computed: Event;
  protected readonly parts = new Map<Partition, Part>();
  protected readonly d2h: Stream;
  private readonly departing: DepartingTensors;

  /**
   * `readBefore`: an update before the last read the memory that takes gradients, which waits for
   * its tiles.
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

  /** Those that run in the order of `updates`. */
  protected kernelsOn(updates: Stream): UpdateKernels {
    return hostKernels(updates);
  }

  abstract readonly bytes: Bytes;
  abstract readonly lendsCopies: boolean;
  abstract adopt(partition: Partition): void;
  abstract writeMaster(partition: Partition, piece: Piece, values: Tensor): void;
  abstract acquire(partition: Partition, tile: HostTile): TileTensors;
  abstract release(tile: TileTensors): void;
  abstract lend(partition: Partition, piece: Piece, name: string): LentState;
  abstract refresh(partition: Partition): void;

  receive(partition: Partition): void {
    const { d2h } = this;
    const part = this.partOf(partition);
    d2h.wait(partition.ready);
    d2h.wait(part.uploaded);
    const grad = partition.grad as Tensor;
    for (const { range, arrived, updated } of part.tiles) {
      if (this.readBefore) d2h.wait(updated);
      copyFlat(part.grad, range, grad, range, d2h);
      arrived.record(d2h);
    }
    this.departing.add(grad.retain());
    partition.dropGrad();
  }

  /** Backward has received its last gradient. */
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

  tilesOf(partition: Partition): Part['tiles'] {
    return this.partOf(partition).tiles;
  }

  deliver(partition: Partition, tile: HostTile): void {
    tile.updated.record(this.host);
    this.upload(partition, tile);
  }

  finish(partition: Partition): Stream {
    const part = this.partOf(partition);
    part.uploaded.record(this.h2d);
    part.uploading = true;
    return this.h2d;
  }

  /** finish() of weights that live elsewhere than on the device: sends them there, all at once. */
  protected store(partition: Partition): Stream {
    const { weight, uploaded } = this.partOf(partition);
    const order = partition.place.store(weight, this.host);
    uploaded.record(order);
    return order;
  }

  /**
   * The weights of all tiles, whose updates have been enqueued, leave once the device has passed
   * `after`.
   */
  uploadAll(partition: Partition, after: Event | null): void {
    if (after) this.h2d.wait(after);
    for (const tile of this.tilesOf(partition)) this.upload(partition, tile);
    this.finish(partition);
  }

  protected upload(partition: Partition, { range, updated }: HostTile): void {
    this.h2d.wait(updated);
    copyFlat(partition.weights, range, this.partOf(partition).weight, range, this.h2d);
  }

  awaitWeights(partition: Partition): void {
    const part = this.partOf(partition);
    if (!part.uploading) return;
    this.device.compute.wait(part.uploaded);
    part.uploading = false;
  }

  gradOf(partition: Partition): Tensor | null {
    for (const stream of [this.d2h, this.host]) stream.synchronize();
    return this.partOf(partition).grad.retain();
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
    for (const { uploaded } of this.parts.values()) uploaded.synchronize();
  }

  dispose(): void {
    this.synchronize();
    for (const part of this.parts.values()) {
      this.disposePart(part);
      part.uploaded.dispose();
    }
    this.parts.clear();
    this.departing.dispose();
    this.control.release();
    this.computed.dispose();
    for (const stream of [this.d2h, this.host, this.h2d]) stream.dispose();
  }

  /** Releases a part's tensors and tiles. */
  protected abstract disposePart(part: Part): void;

  /** For schedules that know of host memory. */
  partOf(partition: Partition): Part {
    return this.parts.get(partition) as Part;
  }
}

/**
 * The memory, held once more, that updates write the partition's weights to: one of `memories`
 * where it has their dtype, else new memory, pinned.
 */
export function memoryForWeights(
  { device, unit, numel }: Partition,
  memories: readonly Tensor[],
): Tensor {
  const alike = memories.find(({ dtype }) => dtype === unit.dtype);
  return alike?.retain() ?? pinned(device, [numel], unit.dtype);
}
