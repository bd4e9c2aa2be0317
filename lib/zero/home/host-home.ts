// State in pinned host memory: updates run on host threads, gradients come down and weights go up beside them.
// Source: Ren et al. 2021 (ZeRO-Offload).
import type { Optimizer } from '../../optim/optimizer.js';
import { hostKernels, type UpdateKernels } from '../../optim/update-kernels.js';
import type { Device } from '../../runtime/device.js';
import type { DType } from '../../runtime/dtype.js';
import * as kernels from '../../runtime/kernels.generated.js';
import { Event, Stream } from '../../runtime/stream.js';
import type { Tensor } from '../../tensor/index.js';
import { copyAll, copyFlat, sliceFlat } from '../flat.js';
import type { Piece } from '../layout.js';
import type { Partition } from '../partition.js';
import { DepartingTensors } from './departing-tensors.js';
import { type Bytes, type Home, LentState, type TileTensors } from './home.js';
import { pinned, pinnedFilled, uploadRounded } from './pinned.js';
import { allocateState, namedPiece, type RangeState, stateTensors } from './range-state.js';
import { disposeTile, makeTiles, type Tile } from './tiles.js';

/** A partition's host side. */
export interface HostPart {
  /** [numel] f32 */
  readonly master: Tensor;
  /** [numel], receives the gradient. */
  grad: Tensor;
  /** [numel] in the weights' dtype, receives the updated weights; may be `master` or `grad`. */
  weight: Tensor;
  readonly ranges: readonly RangeState[];
  readonly tiles: readonly Tile[];
  /** All updated weights have reached the device. */
  readonly uploaded: Event;
  /** The compute stream has not yet been told to wait for `uploaded`. */
  uploading: boolean;
}

export interface HostHomeOptions {
  /** Tiles have at most so many elements, a multiple of 64. */
  tile: number;
  /** The memory that takes gradients was read by an update before the last: the next gradient waits for its tiles. */
  readBefore?: boolean;
}

/**
 * Three streams, ordered by events alone:
 *   d2h stream   gradient of each partition as backward completes it, tile by tile
 *   host stream  updates on host threads, each tile after its gradient
 *   h2d stream   weights, under the update of the next tile; the unit's next forward waits for all of them
 * Host memory per parameter: 12 bytes of state and one gradient element, which the update turns into the weight to
 * upload in place. f32 weights are uploaded from the master instead, 16-bit ones of f32 gradients from 2 bytes more.
 */
export class HostHome implements Home {
  readonly kernels: UpdateKernels;
  /** In which updates run. */
  readonly host: Stream;
  /** In which weights leave. */
  readonly h2d: Stream;
  /** [4] f32, receives what the device has decided. */
  readonly control: Tensor;
  /** The end of backward, once endBackward() has marked it. */
  readonly computed: Event;
  private readonly parts = new Map<Partition, HostPart>();
  private readonly d2h: Stream;
  private readonly departing: DepartingTensors;

  constructor(
    protected readonly device: Device,
    private readonly optimizer: Optimizer,
    private readonly options: HostHomeOptions,
  ) {
    this.d2h = Stream.create(device);
    this.host = Stream.create(device);
    this.h2d = Stream.create(device);
    this.kernels = hostKernels(this.host);
    this.departing = new DepartingTensors(device, this.d2h);
    this.control = pinned(device, [4], 'f32');
    this.computed = new Event(device);
  }

  adopt(partition: Partition): void {
    const { device, optimizer } = this;
    const shape = [partition.numel];
    const master = pinned(device, shape, 'f32');
    const grad = pinned(device, shape, partition.unit.gradDtype);
    const allocate = pinnedFilled.bind(null, device);
    const ranges = allocateState(partition, optimizer, allocate);
    this.parts.set(partition, {
      ...{ master, grad, ranges },
      weight: this.weightFor(partition, master, grad),
      tiles: makeTiles(ranges, optimizer, { device, size: this.options.tile, allocate }),
      uploaded: new Event(device),
      uploading: false,
    });
  }

  /** The memory, held once more, that updates write the partition's weights to: `master` or `grad` where one has their dtype. */
  protected weightFor({ weights, numel }: Partition, master: Tensor, grad: Tensor): Tensor {
    const alike = [master, grad].find(({ dtype }) => dtype === weights.dtype);
    return alike?.retain() ?? pinned(this.device, [numel], weights.dtype);
  }

  writeMaster(partition: Partition, piece: Piece, values: Tensor): void {
    const { master } = this.partOf(partition);
    copyFlat(master, piece, values, { offset: 0, numel: piece.numel }, this.device.compute);
  }

  receive(partition: Partition): void {
    const { d2h } = this;
    const part = this.partOf(partition);
    d2h.wait(partition.ready);
    d2h.wait(part.uploaded);
    const grad = partition.grad as Tensor;
    for (const { range, arrived, updated } of part.tiles) {
      if (this.options.readBefore) d2h.wait(updated);
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

  tilesOf(partition: Partition): readonly Tile[] {
    return this.partOf(partition).tiles;
  }

  acquire(partition: Partition, tile: Tile): TileTensors {
    const { master, grad, weight } = this.partOf(partition);
    const { range, state, sums, starts, arrived } = tile;
    const { group, places } = range;
    this.host.wait(arrived);
    return {
      ...{ group, places, state, sums, starts },
      master: sliceFlat(master, range),
      grad: sliceFlat(grad, range),
      weight: weight === master ? null : sliceFlat(weight, range),
    };
  }

  release({ master, grad, weight }: TileTensors): void {
    for (const slice of [master, grad, weight]) slice?.release();
  }

  deliver(partition: Partition, tile: Tile): void {
    tile.updated.record(this.host);
    this.upload(partition, tile);
  }

  finish(partition: Partition): Stream {
    const part = this.partOf(partition);
    part.uploaded.record(this.h2d);
    part.uploading = true;
    return this.h2d;
  }

  /** The weights of all tiles, whose updates have been enqueued, leave once the device has passed `after`. */
  uploadAll(partition: Partition, after: Event | null): void {
    if (after) this.h2d.wait(after);
    for (const tile of this.tilesOf(partition)) this.upload(partition, tile);
    this.finish(partition);
  }

  private upload(partition: Partition, { range, updated }: Tile): void {
    this.h2d.wait(updated);
    copyFlat(partition.weights, range, this.partOf(partition).weight, range, this.h2d);
  }

  /**
   * From now on `memory`, [numel] in the weights' dtype, takes the partition's gradients and gives its weights. Returns
   * what took gradients before, which is the caller's.
   */
  exchange(partition: Partition, memory: Tensor): Tensor {
    const part = this.partOf(partition);
    const { grad } = part;
    part.weight.release();
    part.weight = memory.retain();
    part.grad = memory;
    return grad;
  }

  awaitWeights(partition: Partition): void {
    const part = this.partOf(partition);
    if (!part.uploading) return;
    this.device.compute.wait(part.uploaded);
    part.uploading = false;
  }

  gradOf(partition: Partition): Tensor {
    for (const stream of [this.d2h, this.host]) stream.synchronize();
    return this.partOf(partition).grad.retain();
  }

  lend(partition: Partition, piece: Piece, name: string): LentState {
    const { optimizer } = this;
    const kept = namedPiece({ optimizer, ...this.partOf(partition) }, piece, name);
    return new LentState(kept, this.host);
  }

  refresh(partition: Partition): void {
    uploadRounded(this.partOf(partition).master, partition.weights);
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
  }

  get bytes(): Bytes {
    const all = [...this.parts.values()].flatMap(tensorsOf);
    const own = new Set([this.control, ...all]);
    return { device: 0, host: [...own].reduce((sum, { bytes }) => sum + bytes, 0) };
  }

  dispose(): void {
    this.synchronize();
    for (const part of this.parts.values()) {
      for (const tile of part.tiles) disposeTile(tile);
      for (const tensor of tensorsOf(part)) tensor.release();
      part.uploaded.dispose();
    }
    this.parts.clear();
    this.departing.dispose();
    this.control.release();
    this.computed.dispose();
    for (const stream of [this.d2h, this.host, this.h2d]) stream.dispose();
  }

  /** For schedules that know of host memory. */
  partOf(partition: Partition): HostPart {
    return this.parts.get(partition) as HostPart;
  }
}

/**
 * State and weights in host memory, where stage 3 keeps the weights' shards (offload_param): the update writes the
 * weights where they live, and nothing is uploaded before somebody gathers them.
 */
export class HostHomeOfHostWeights extends HostHome {
  protected override weightFor({ weights }: Partition): Tensor {
    return weights.retain();
  }

  override deliver(): void {}

  override finish(partition: Partition): Stream {
    this.partOf(partition).uploaded.record(this.host);
    return this.host;
  }

  override refresh(partition: Partition): void {
    const { master } = this.partOf(partition);
    kernels.copyOnHost({ in: master, out: partition.weights }, this.host);
    this.host.synchronize();
  }
}

function tensorsOf({ master, grad, weight, ranges }: HostPart): Tensor[] {
  return [master, grad, weight, ...stateTensors(ranges)];
}
