// StreamedState: optimizer state in pinned host memory that the device updates through two windows.
// Source: Maurya et al. 2024 (Deep Optimizer States), which updates every n-th subgroup of an
// offloaded optimizer this way.
import type { Optimizer } from '../../../optim/optimizer.js';
import { deviceKernels, type UpdateKernels } from '../../../optim/update-kernels.js';
import type { Device } from '../../../runtime/device.js';
import type { DType } from '../../../runtime/dtype.js';
import type { Stream } from '../../../runtime/stream.js';
import { held, Tensor } from '../../../tensor/index.js';
import { copyFlat, zeroRange } from '../../flat.js';
import type { Fragment, Range } from '../../layout.js';
import type { Partition } from '../../partition.js';
import { HostStreams } from '../host-streams.js';
import { type Bytes, LentState } from '../lent-state.js';
import { pinned } from '../pinned.js';
import { namedFragment, stateTensors } from '../range-state.js';
import type { OpenTile, Placement, ShardPart } from '../strategies.js';
import type { StateTile } from '../tiles.js';
import { Windows } from '../windows.js';
import { type HostStateOptions, releaseHostState, reused, stateInHostMemory } from './host.js';

/**
 * Elements of streamed tiles: enough for the full PCIe rate, few enough for small windows on the
 * device.
 */
export const STREAMED_TILE = 2 ** 24;

/**
 * The device updates on a stream in parallel with compute. Gradients stay on the device, and
 * updates turn them into weights there, so neither crosses PCIe. Device memory: one gradient
 * element per parameter, and two windows for tiles. Host memory: only the state. Only for
 * elementwise rules: see isByElement().
 */
export class StreamedState implements Placement {
  readonly traffic: HostStreams;
  readonly kernels: UpdateKernels;
  readonly windows: Windows;
  readonly updatesOnDevice = true;
  readonly receivesGradients = true;
  readonly lendsCopies = false;
  readonly readsInPlace = false;
  /** [4] f32 on the device, the control of running updates. */
  private readonly seen: Tensor;
  private readonly tile: number;

  constructor(
    private readonly device: Device,
    private readonly optimizer: Optimizer,
    { tile, readBefore }: HostStateOptions,
  ) {
    this.traffic = new HostStreams(device, readBefore);
    this.kernels = deviceKernels(this.traffic.order);
    this.windows = new Windows(device, this.traffic.order);
    this.tile = Math.min(tile, STREAMED_TILE);
    this.seen = this.allocate(4, 'f32');
  }

  get stateOrder(): Stream {
    return this.windows.down;
  }

  get bytes(): Bytes {
    const { traffic, seen, windows } = this;
    return { device: seen.bytes + windows.bytes, host: traffic.bytes, disk: 0 };
  }

  takeControl(control: Tensor): Tensor {
    return this.traffic.copyControl(control, this.seen);
  }

  allocate(numel: number, dtype: DType): Tensor {
    const { device, traffic } = this;
    const out = held(() => Tensor.empty([numel], dtype, device));
    zeroRange(out, { offset: 0, numel });
    traffic.order.wait(traffic.computed.record(device.compute));
    return out;
  }

  reaches({ buffer }: Tensor): boolean {
    return !buffer.pinned;
  }

  masterMemory({ numel }: Partition): Tensor {
    return pinned(this.device, [numel], 'f32');
  }

  /** The gradient's memory if it has the weights' dtype, else new memory on the device. */
  weightMemory({ numel, unit }: Partition, memories: readonly (Tensor | null)[]): Tensor {
    const there = memories.filter((memory) => memory !== null && this.reaches(memory));
    return reused(there, unit.dtype) ?? this.allocate(numel, unit.dtype);
  }

  stateOf(partition: Partition): Pick<ShardPart, 'ranges' | 'tiles'> {
    const { device, optimizer, tile } = this;
    return stateInHostMemory(partition, optimizer, { device, tile });
  }

  tensorsOf({ ranges }: ShardPart): Tensor[] {
    return stateTensors(ranges);
  }

  makeRoom(kept: OpenTile): void {
    this.windows.makeRoom(kept);
  }

  open(tile: StateTile, kept: () => OpenTile): OpenTile {
    return this.windows.open(tile, kept());
  }

  close(opened: OpenTile, changed: boolean): void {
    this.windows.close(opened, changed);
  }

  writeMaster({ master }: ShardPart, fragment: Fragment, values: Tensor): void {
    const all = { offset: 0, numel: fragment.numel };
    copyFlat(master as Tensor, fragment, values, all, this.device.compute);
    this.followCompute();
  }

  followCompute(): void {
    this.windows.followCompute();
  }

  lend({ master, ranges }: ShardPart, fragment: Fragment, name: string): LentState {
    const { optimizer } = this;
    const kept = namedFragment({ optimizer, master: master as Tensor, ranges }, fragment, name);
    return new LentState(kept, this.windows.down, () => this.followCompute());
  }

  eachMaster({ master }: ShardPart, body: (master: Tensor, range: Range) => void): void {
    this.windows.synchronize();
    body(master as Tensor, { offset: 0, numel: (master as Tensor).numel });
  }

  synchronize(): void {
    this.traffic.synchronize();
    this.windows.synchronize();
  }

  releasePart(part: ShardPart): void {
    releaseHostState(part);
  }

  dispose(): void {
    this.traffic.dispose();
    this.seen.release();
    this.windows.dispose();
  }
}
