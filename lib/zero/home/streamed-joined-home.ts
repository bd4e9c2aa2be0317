// State in pinned host memory that the device updates, of weights that are tried out: its masters
// are split, and the device keeps their upper halves.
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

/** A tile that is open: halves of its masters on the device, held, and what they are joined to. */
interface Joined {
  high: Tensor;
  /** As the windows have them: lower halves for masters, ties among the state. */
  rest: OpenTile;
}

/**
 * What StreamedHome does with 10 bytes and a bit each way for a parameter, not 12. The weights that
 * the model has are a step ahead of the masters, and no half of these: so the upper halves, bf16,
 * stay on the device for themselves, lower ones stream with the moments, and each tile is joined to
 * f32 masters where an update works on it. Device memory: 2 bytes a parameter, and 4 of the largest
 * tile, more than StreamedHome. Host memory: 1.9 bytes a parameter less.
 */
export class StreamedJoinedHome extends StreamedHalves {
  /** f32 masters of the tile that is open, in the order of updates. */
  private scratch: Tensor;
  private joined: Joined | null = null;

  /** `rule` is of partitions with bf16 weights. */
  constructor(device: Device, rule: SplitMaster, options: HostHomeOptions) {
    super(device, rule, options);
    this.scratch = this.allocate(0, 'f32');
  }

  /** Their upper halves. */
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
    const high = sliceFlat(this.partOf(partition).master, range);
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

  /** Rounded masters are their upper halves. */
  override refresh(partition: Partition): void {
    this.synchronize();
    copyAll(partition.weights, this.partOf(partition).master, this.device.compute);
    this.device.compute.synchronize();
  }

  override get bytes(): Bytes {
    const { host, device, disk } = super.bytes;
    const upper = [...this.parts.values()].reduce((sum, { master }) => sum + master.bytes, 0);
    return { device: device + upper + this.scratch.bytes, host: host - upper, disk };
  }

  override dispose(): void {
    super.dispose();
    this.scratch.release();
  }
}

/**
 * The same of weights that stage 3 keeps in host memory (offload_param: cpu), where these are not:
 * they would go there to come back for the next forward. Device memory: 2 bytes a parameter more.
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

  /** In the order of updates. What they replace is gathered until backward has ended. */
  override uploadAll(partition: Partition): void {
    exchangeSpeculative(this.partOf(partition), partition.place);
    this.store(partition);
  }

  /** Weights are the partition's. */
  override get bytes(): Bytes {
    const theirs = [...this.parts].filter(([{ place }, { weight }]) => weight === place.memory);
    const all = super.bytes;
    return {
      ...all,
      device: theirs.reduce((sum, [, { weight }]) => sum - weight.bytes, all.device),
    };
  }
}
