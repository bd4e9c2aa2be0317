// HostState: optimizer state in pinned host memory, updated by CPU threads.
import type { Optimizer } from '../../../optim/optimizer.js';
import { hostKernels, type UpdateKernels } from '../../../optim/update-kernels.js';
import type { Device } from '../../../runtime/device.js';
import type { DType } from '../../../runtime/dtype.js';
import type { Stream } from '../../../runtime/stream.js';
import type { Tensor } from '../../../tensor/index.js';
import type { Fragment, Range } from '../../layout.js';
import type { Partition } from '../../shard.js';
import { HostStreams } from '../host-streams.js';
import { masterInMemory, tensorInMemory, writeInMemory } from '../in-memory.js';
import { type Bytes, LentState } from '../lent-state.js';
import { pinned, pinnedFilled } from '../pinned.js';
import { allocateState, stateTensors } from '../range-state.js';
import type { OpenTile, Placement, ShardPart } from '../strategies.js';
import { disposeTile, makeTiles, type StateTile } from '../tiles.js';

export interface HostStateOptions {
  /** Maximum elements per tile, a multiple of 64. */
  tile: number;
  /**
   * An update older than the last one has read the memory for gradients, so the next gradient waits
   * for its tiles.
   */
  readBefore?: boolean;
}

/**
 * Host memory per parameter: 12 bytes of state, and one gradient element, which the update replaces
 * by the weight to upload. f32 weights are uploaded from the master. 16-bit weights with f32
 * gradients need 2 bytes more.
 */
export class HostState implements Placement {
  readonly traffic: HostStreams;
  readonly kernels: UpdateKernels;
  readonly updatesOnDevice = false;
  readonly receivesGradients = true;
  readonly lendsCopies = false;
  /** Updates read state in place, so a pass that writes less of it costs less. */
  readonly readsInPlace = true;

  constructor(
    private readonly device: Device,
    private readonly optimizer: Optimizer,
    private readonly options: HostStateOptions,
  ) {
    this.traffic = new HostStreams(device, options.readBefore);
    this.kernels = hostKernels(this.traffic.order);
  }

  get stateOrder(): Stream {
    return this.traffic.order;
  }

  get bytes(): Bytes {
    return { device: 0, host: this.traffic.bytes, disk: 0 };
  }

  takeControl(control: Tensor): Tensor {
    return this.traffic.copyControl(control, this.traffic.control);
  }

  allocate(numel: number, dtype: DType): Tensor {
    return pinned(this.device, [numel], dtype);
  }

  reaches({ buffer }: Tensor): boolean {
    return buffer.pinned;
  }

  masterMemory({ numel }: Partition): Tensor {
    return pinned(this.device, [numel], 'f32');
  }

  /** One of `memories` with the weights' dtype, else new memory. */
  weightMemory({ numel, unit }: Partition, memories: readonly (Tensor | null)[]): Tensor {
    return reused(memories, unit.dtype) ?? this.allocate(numel, unit.dtype);
  }

  stateOf(partition: Partition): Pick<ShardPart, 'ranges' | 'tiles'> {
    const { device, optimizer, options } = this;
    return stateInHostMemory(partition, optimizer, { device, tile: options.tile });
  }

  tensorsOf({ ranges }: ShardPart): Tensor[] {
    return stateTensors(ranges);
  }

  makeRoom(): void {}

  open(_: StateTile, kept: () => OpenTile): OpenTile {
    return kept();
  }

  close({ master }: OpenTile): void {
    master.release();
  }

  writeMaster(part: ShardPart, fragment: Fragment, values: Tensor): void {
    writeInMemory(part, fragment, values);
  }

  followCompute(): void {}

  lend(part: ShardPart, fragment: Fragment, name: string): LentState {
    const lent = tensorInMemory(part, this.optimizer, fragment, name);
    return new LentState(lent, this.traffic.order);
  }

  eachMaster(part: ShardPart, body: (master: Tensor, range: Range) => void): void {
    masterInMemory(part, body);
  }

  synchronize(): void {
    this.traffic.synchronize();
  }

  releasePart(part: ShardPart): void {
    releaseHostState(part);
  }

  dispose(): void {
    this.traffic.dispose();
  }
}

/** Returns one of `memories` with this dtype, with a new reference; else null. */
export function reused(memories: readonly (Tensor | null)[], dtype: DType): Tensor | null {
  return memories.find((memory) => memory?.dtype === dtype)?.retain() ?? null;
}

/** Allocates the state of a partition in pinned memory, in tiles of at most `tile` elements. */
export function stateInHostMemory(
  partition: Partition,
  optimizer: Optimizer,
  { device, tile }: { device: Device; tile: number },
): Pick<ShardPart, 'ranges' | 'tiles'> {
  const allocate = pinnedFilled.bind(null, device);
  const ranges = allocateState(partition, optimizer, allocate);
  return { ranges, tiles: makeTiles(ranges, optimizer, { device, size: tile, allocate }) };
}

/** Releases what stateInHostMemory() returned. */
export function releaseHostState({ ranges, tiles }: ShardPart): void {
  for (const tile of tiles) disposeTile(tile);
  for (const tensor of stateTensors(ranges)) tensor.release();
}
