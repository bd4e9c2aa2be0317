// Offload placement: master weights and optimizer state in pinned host memory, Adam on host threads.
// Source: Ren et al. 2021 (ZeRO-Offload), with the clipping factor known before the first update ("deferred").
import type { Optimizer, UpdateTensors } from '../optim/optimizer.js';
import type { Device } from '../runtime/device.js';
import { Event, Stream } from '../runtime/stream.js';
import type { Tensor } from '../tensor/index.js';
import { DepartingTensors } from './departing-tensors.js';
import { sliceFlat } from './flat.js';
import type { GroupRange, Piece } from './layout.js';
import type { Partition } from './partition.js';
import { copyFlat, pinned, pinnedFilled, uploadRounded } from './pinned.js';
import type { OpenPlacement, Published, UpdatePlan } from './placement.js';
import {
  allocateState,
  type RangeState,
  slicePiece,
  stateSlice,
  stateTensors,
} from './range-state.js';
import { disposeTile, makeTiles, type Tile } from './tiles.js';
import { HostSite } from './update-site.js';

/** A partition's host side. */
export interface HostPart {
  /** [numel] f32 */
  master: Tensor;
  /** [numel], receives the gradient. */
  grad: Tensor;
  /** [numel] in the weights' dtype, receives the updated weights; may be `master` or `grad`. */
  weight: Tensor;
  ranges: readonly RangeState[];
  tiles: readonly Tile[];
  /** All updated weights have reached the device. */
  uploaded: Event;
  /** The compute stream has not yet been told to wait for `uploaded`. */
  pending: boolean;
}

/**
 * Per step, ordered by events alone:
 *   d2h stream   gradient of each partition as backward completes it, tile by tile
 *   host stream  the control, then the update of each partition in forward order on host threads, each tile after its gradient
 *   h2d stream   its weights, under the Adam of the next tile; the unit's next forward waits for all of them
 * Host memory per parameter: 12 bytes of state and one gradient element, which the update turns into the weight to
 * upload in place. f32 weights are uploaded from the master instead, 16-bit ones of f32 gradients from 2 bytes more.
 */
export class OffloadPlacement implements OpenPlacement {
  readonly site: HostSite;
  private readonly parts = new Map<Partition, HostPart>();
  private readonly d2h: Stream;
  protected readonly host: Stream;
  private readonly h2d: Stream;
  private readonly departing: DepartingTensors;
  private readonly control: Tensor;
  private readonly computed: Event;

  /** Tiles have at most `tile` elements, a multiple of 64. */
  constructor(
    private readonly device: Device,
    private readonly optimizer: Optimizer,
    private readonly tile: number,
  ) {
    this.d2h = Stream.create(device);
    this.host = Stream.create(device);
    this.h2d = Stream.create(device);
    this.site = new HostSite(device, this.host);
    this.departing = new DepartingTensors(device, this.d2h);
    this.control = pinned(device, [4], 'f32');
    this.computed = new Event(device);
  }

  adopt(partition: Partition): void {
    const { device, optimizer, tile: size } = this;
    const shape = [partition.numel];
    const master = pinned(device, shape, 'f32');
    const grad = pinned(device, shape, partition.unit.gradDtype);
    const allocate = pinnedFilled.bind(null, device);
    const ranges = allocateState(partition, optimizer, allocate);
    this.parts.set(partition, {
      master,
      grad,
      weight: this.weightFor(partition, master, grad),
      ranges,
      uploaded: new Event(device),
      pending: false,
      tiles: makeTiles(ranges, optimizer, { device, size, allocate }),
    });
  }

  /** The memory, held once more, that updates write the partition's weights to: `master` or `grad` where one has their dtype. */
  protected weightFor({ weights, numel }: Partition, master: Tensor, grad: Tensor): Tensor {
    const alike = [master, grad].find(({ dtype }) => dtype === weights.dtype);
    return alike?.retain() ?? pinned(this.device, [numel], weights.dtype);
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
    for (const { range, arrived } of host.tiles) {
      copyFlat(host.grad, range, grad, range, this.d2h);
      arrived.record(this.d2h);
    }
    this.departing.add(grad.retain());
    partition.dropGrad();
  }

  update(control: Tensor, plan: UpdatePlan, published: Published): void {
    const taken = this.takeControl(control);
    for (const [partition, host] of this.parts) {
      for (const tile of host.tiles) {
        this.host.wait(tile.arrived);
        withTensors(host, tile, taken, (tensors) => plan.apply(tensors, this.site.kernels));
        this.deliver(partition, host, tile);
      }
      published(partition, this.delivered(host));
    }
  }

  takeControl(control: Tensor): Tensor {
    this.departing.flush();
    this.host.wait(this.computed.record(this.device.compute));
    const four = { offset: 0, numel: 4 };
    copyFlat(this.control, four, control, four, this.host);
    return this.control;
  }

  eachRange(
    partition: Partition,
    control: Tensor,
    body: (tensors: UpdateTensors, range: GroupRange) => void,
  ): void {
    const host = this.hostOf(partition);
    for (const tile of host.tiles) {
      this.host.wait(tile.arrived);
      withTensors(host, tile, control, (tensors) => body(tensors, tile.range));
    }
  }

  finish(partition: Partition): Stream {
    const host = this.hostOf(partition);
    for (const tile of host.tiles) this.deliver(partition, host, tile);
    return this.delivered(host);
  }

  /** A tile was updated in the order of the host stream: brings its weights to the device. */
  protected deliver({ weights }: Partition, { weight }: HostPart, { range, updated }: Tile): void {
    this.h2d.wait(updated.record(this.host));
    copyFlat(weights, range, weight, range, this.h2d);
  }

  /** All tiles are under way. Returns in whose order the weights change. */
  protected delivered(host: HostPart): Stream {
    host.uploaded.record(this.h2d);
    host.pending = true;
    return this.h2d;
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
    for (const { master, grad, weight, ranges } of this.parts.values()) {
      const own = new Set([master, grad, weight, ...stateTensors(ranges)]);
      for (const tensor of own) host += tensor.bytes;
    }
    return { device: 0, host };
  }

  dispose(): void {
    this.synchronize();
    for (const { master, grad, weight, ranges, tiles, uploaded } of this.parts.values()) {
      for (const tile of tiles) disposeTile(tile);
      for (const tensor of [master, grad, weight, ...stateTensors(ranges)]) tensor.release();
      uploaded.dispose();
    }
    this.parts.clear();
    this.departing.dispose();
    this.control.release();
    this.site.dispose();
    this.computed.dispose();
    for (const stream of [this.d2h, this.host, this.h2d]) stream.dispose();
  }

  protected hostOf(partition: Partition): HostPart {
    return this.parts.get(partition) as HostPart;
  }
}

/** Calls `body` with the tensors of a tile, which are its own until it returns. */
function withTensors(
  { master, grad, weight }: HostPart,
  { range, state, scalars, sums, starts }: Tile,
  control: Tensor,
  body: (tensors: UpdateTensors) => void,
): void {
  const { group, places } = range;
  const parts = {
    master: sliceFlat(master, range),
    grad: sliceFlat(grad, range),
    weight: weight === master ? null : sliceFlat(weight, range),
  };
  body({ group, places, state, scalars, sums, starts, control, ...parts });
  for (const slice of Object.values(parts)) slice?.release();
}
