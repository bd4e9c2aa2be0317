// StreamedHome: state in pinned host memory that the device updates through two windows. Source:
// Maurya et al. 2024 (Deep Optimizer States), which updates every n-th subgroup of an offloaded
// optimizer this way.

import type { Optimizer } from '../../optim/optimizer.js';
import { deviceKernels, type UpdateKernels } from '../../optim/update-kernels.js';
import type { Device } from '../../runtime/device.js';
import type { DType } from '../../runtime/dtype.js';
import type { Stream } from '../../runtime/stream.js';
import { held, Tensor } from '../../tensor/index.js';
import { copyAll, zeroRange } from '../flat.js';
import type { Fragment } from '../layout.js';
import type { Partition } from '../partition.js';
import { HostHome, type HostHomeOptions, type OpenTile } from './host-home.js';
import { type Bytes, LentState } from './lent-state.js';
import type { Tile } from './tiles.js';
import { Windows } from './windows.js';

/**
 * Elements of streamed tiles: enough for the full PCIe rate, few enough for small windows on the
 * device.
 */
const LARGEST_TILE = 2 ** 24;

/**
 * Works like HostHome, but the device updates on a stream in parallel with compute. Gradients stay
 * on the device, and updates turn them into weights there, so neither crosses PCIe. Device memory:
 * one gradient element per parameter, and two windows for tiles. Host memory: only the state. Only
 * for elementwise rules: see isByElement().
 */
export class StreamedHome extends HostHome {
  override readonly readsInPlace = false;
  protected readonly windows: Windows;
  /** [4] f32, the control of running updates. */
  private readonly seen: Tensor;

  constructor(device: Device, optimizer: Optimizer, options: HostHomeOptions) {
    super(device, optimizer, { ...options, tile: Math.min(options.tile, LARGEST_TILE) });
    this.windows = new Windows(device, this.host);
    this.seen = this.allocate(4, 'f32');
  }

  protected override kernelsOn(updates: Stream): UpdateKernels {
    return deviceKernels(updates);
  }

  /** Returns zeros on the device, for updates. */
  override allocate(numel: number, dtype: DType): Tensor {
    const { device } = this;
    const out = held(() => Tensor.empty([numel], dtype, device));
    zeroRange(out, { offset: 0, numel });
    this.host.wait(this.computed.record(device.compute));
    return out;
  }

  override adopt(partition: Partition): void {
    super.adopt(partition);
    for (const tile of this.tilesOf(partition)) {
      const kept = this.streamed(partition, tile);
      this.windows.makeRoom(kept);
      super.close(kept, false);
    }
  }

  /** Returns the streamed tensors of a tile in host memory, with a reference to `master`. */
  protected streamed(partition: Partition, tile: Tile): OpenTile {
    return super.open(partition, tile);
  }

  protected override weightFor(
    { unit, numel }: Partition,
    [, grad]: readonly [Tensor, Tensor],
  ): Tensor {
    return grad.dtype === unit.dtype ? grad.retain() : this.allocate(numel, unit.dtype);
  }

  override takeControl(control: Tensor): Tensor {
    this.endBackward();
    this.host.wait(this.computed);
    copyAll(this.seen, control, this.host);
    return this.seen;
  }

  override open(partition: Partition, tile: Tile): OpenTile {
    return this.windows.open(tile, this.streamed(partition, tile));
  }

  override close(opened: OpenTile, changed: boolean): void {
    this.windows.close(opened, changed);
  }

  override writeMaster(partition: Partition, fragment: Fragment, values: Tensor): void {
    super.writeMaster(partition, fragment, values);
    this.windows.followCompute();
  }

  override lend(partition: Partition, fragment: Fragment, name: string): LentState {
    const { tensor } = super.lend(partition, fragment, name);
    return new LentState(tensor, this.windows.down, () => this.windows.followCompute());
  }

  override refresh(partition: Partition): void {
    this.windows.synchronize();
    super.refresh(partition);
  }

  override synchronize(): void {
    super.synchronize();
    this.windows.synchronize();
  }

  override get bytes(): Bytes {
    const buffers = [...this.buffers.values()];
    const own = new Set(buffers.flatMap(({ grad, weight }) => [grad, weight]));
    const passing = [...own].reduce((sum, { bytes }) => sum + bytes, 0);
    const device = passing + this.seen.bytes + this.windows.bytes;
    return { device, host: super.bytes.host - passing, disk: 0 };
  }

  override dispose(): void {
    super.dispose();
    this.seen.release();
    this.windows.dispose();
  }
}

/**
 * Streamed state for weights in host memory or on a disk (offload_param); the weights also cross
 * PCIe.
 */
export class StreamedHomeOfOffloadedWeights extends StreamedHome {
  override deliver(partition: Partition, tile: Tile): void {
    if (partition.place.memory) super.deliver(partition, tile);
  }

  override finish(partition: Partition): Stream {
    return partition.place.memory ? super.finish(partition) : this.store(partition);
  }

  /** Waits for the end of backward, which may still gather the previous weights. */
  override uploadAll(partition: Partition): void {
    super.uploadAll(partition, this.computed);
  }

  override refresh(partition: Partition): void {
    this.synchronize();
    const { master } = this.buffersOf(partition);
    partition.place.store(master, this.host).synchronize();
  }
}
