// StreamedJoinedHome: split masters for speculative updates by the device, which stores their upper
// halves.
import { halves, type SplitMaster } from '../../optim/split-master.js';
import type { Device } from '../../runtime/device.js';
import * as kernels from '../../runtime/kernels.generated.js';
import type { Tensor } from '../../tensor/index.js';
import { copyAll, sliceFlat } from '../flat.js';
import type { Partition } from '../partition.js';
import { exchangeSpeculative, type HostHomeOptions, type OpenTile } from './host-home.js';
import type { Bytes } from './lent-state.js';
import { StreamedHalves, withLowerHalves } from './streamed-split-home.js';
import type { Tile } from './tiles.js';

/** An open tile: upper halves on the device, with a reference, and the windows' tensors. */
interface Joined {
  high: Tensor;
  /** From the windows: lower halves as `master`, ties in the state. */
  rest: OpenTile;
}

/**
 * Like StreamedHome, with 10.125 instead of 12 bytes per parameter each way. The model's weights
 * are one step ahead of the masters, so they are not their upper halves. The device stores separate
 * bf16 upper halves. Lower halves stream with the moments, and each tile is joined to f32 masters
 * for its update. Device memory: 2 bytes per parameter and 4 bytes per element of the largest tile
 * more than StreamedHome. Host memory: 1.9 bytes per parameter less.
 */
export class StreamedJoinedHome extends StreamedHalves {
  /** f32 masters of the open tile, in the order of updates. */
  private scratch: Tensor;
  private joined: Joined | null = null;

  /** `rule`: for partitions with bf16 weights. */
  constructor(device: Device, rule: SplitMaster, options: HostHomeOptions) {
    super(device, rule, options);
    this.scratch = this.allocate(0, 'f32');
  }

  /** Allocates the upper halves. */
  protected override masterFor({ numel }: Partition): Tensor {
    return this.allocate(numel, 'bf16');
  }

  override adopt(partition: Partition): void {
    super.adopt(partition);
    const largest = Math.max(0, ...this.tilesOf(partition).map(({ range }) => range.numel));
    if (largest <= this.scratch.numel) return;
    this.scratch.release();
    this.scratch = this.allocate(largest, 'f32');
  }

  protected override streamed(_: Partition, tile: Tile): OpenTile {
    return withLowerHalves(tile);
  }

  override open(partition: Partition, tile: Tile): OpenTile {
    const { range } = tile;
    const rest = super.open(partition, tile);
    const high = sliceFlat(this.buffersOf(partition).master, range);
    const master = sliceFlat(this.scratch, { offset: 0, numel: range.numel });
    this.joined = { high, rest };
    const { [halves.ties]: ties, ...state } = rest.state;
    kernels.joinMaster({ high, low: rest.master, ties: ties as Tensor, out: master }, this.host);
    return { master, state };
  }

  override close({ master }: OpenTile, changed: boolean): void {
    const { high, rest } = this.joined as Joined;
    this.joined = null;
    const ties = rest.state[halves.ties] as Tensor;
    if (changed) kernels.splitMaster({ in: master, high, low: rest.master, ties }, this.host);
    super.close(rest, changed);
    for (const tensor of [high, master]) tensor.release();
  }

  /** The rounded masters are their upper halves. */
  override refresh(partition: Partition): void {
    this.synchronize();
    copyAll(partition.weights, this.buffersOf(partition).master, this.device.compute);
    this.device.compute.synchronize();
  }

  override get bytes(): Bytes {
    const { host, device, disk } = super.bytes;
    const upper = [...this.buffers.values()].reduce((sum, { master }) => sum + master.bytes, 0);
    return { device: device + upper + this.scratch.bytes, host: host - upper, disk };
  }

  override dispose(): void {
    super.dispose();
    this.scratch.release();
  }
}

/**
 * For weights that stage 3 stores in host memory (offload_param: cpu). These weights stay on the
 * device, because the next forward would copy them back. Device memory: 2 bytes per parameter more.
 * Host memory: 2 less.
 */
export class StreamedJoinedHomeOfOffloadedWeights extends StreamedJoinedHome {
  override adopt(partition: Partition): void {
    super.adopt(partition);
    const { weights, place } = partition;
    const kept = this.allocate(weights.numel, weights.dtype);
    copyAll(kept, weights, this.device.compute);
    this.device.compute.synchronize();
    place.exchange?.(kept).release();
  }

  /** In the order of updates. Backward gathers the previous weights until its end. */
  override uploadAll(partition: Partition): void {
    exchangeSpeculative(this.buffersOf(partition), partition.place);
    this.store(partition);
  }

  /** Counts the weights as those of the partition. */
  override get bytes(): Bytes {
    const theirs = [...this.buffers].filter(([{ place }, { weight }]) => weight === place.memory);
    const all = super.bytes;
    return {
      ...all,
      device: theirs.reduce((sum, [, { weight }]) => sum - weight.bytes, all.device),
    };
  }
}
