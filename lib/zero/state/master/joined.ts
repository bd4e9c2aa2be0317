// JoinedMasters: split masters for speculative updates by the device, which stores their upper
// halves.
import { halves, LOWER_HALF, type SplitMaster } from '../../../optim/split-master.js';
import type { Device } from '../../../runtime/device.js';
import { dtypeSize } from '../../../runtime/dtype.js';
import * as kernels from '../../../runtime/kernels.generated.js';
import { required } from '../../../runtime/required.js';
import { copyAll, sliceFlat } from '../../../tensor/flat.js';
import type { Tensor } from '../../../tensor/index.js';
import type { Partition } from '../../unit.js';
import type { Bytes } from '../lent-state.js';
import { SplitFragments } from '../split-fragments.js';
import {
  canAccess,
  type MasterCosts,
  type Masters,
  type OpenTile,
  type Placement,
  type ShardPart,
  type Traffic,
} from '../strategies.js';
import type { StateTile } from '../tiles.js';
import { withLowerHalves } from './split.js';

/** An open tile with references: its upper halves on the device, and the placement's tensors. */
interface JoinedTile {
  high: Tensor;
  /** The lower halves as `master`, and the ties in the state. */
  lowTile: OpenTile;
}

/**
 * 10.125 instead of 12 bytes per parameter cross PCIe each way. Speculative weights are one step
 * ahead of the masters, so the device stores separate bf16 upper halves. Lower halves stream with
 * the moments, and each tile is joined to f32 masters. Offloaded weights stay on the device,
 * because the next forward would copy them back. See `costs` for the memory.
 */
export class JoinedMasters implements Masters {
  static readonly costs: MasterCosts = {
    stored: LOWER_HALF,
    onDevice: dtypeSize('bf16'),
    scratch: dtypeSize('f32'),
    areWeights: false,
    keepsWeights: true,
  };
  readonly areWeights = JoinedMasters.costs.areWeights;
  readonly fragments: SplitFragments;
  readonly route: Traffic;
  /** f32 masters of the open tile, in the order of updates. */
  private scratch: Tensor;
  private joined: JoinedTile | null = null;

  /** `rule`: for partitions with bf16 weights. */
  constructor(
    private readonly device: Device,
    rule: SplitMaster,
    private readonly placement: Placement,
  ) {
    this.fragments = new SplitFragments(device, rule, placement);
    this.route = placement.traffic;
    this.scratch = placement.allocate(0, 'f32');
  }

  get bytes(): Bytes {
    return { device: this.scratch.bytes, host: 0, disk: 0 };
  }

  memory({ numel }: Partition): Tensor {
    return this.placement.allocate(numel, 'bf16');
  }

  adopt(part: ShardPart): void {
    this.keepOnDevice(part.partition);
    const largest = Math.max(0, ...part.tiles.map(({ range }) => range.numel));
    if (largest <= this.scratch.numel) return;
    this.scratch.release();
    this.scratch = this.placement.allocate(largest, 'f32');
  }

  private keepOnDevice({ weights, storage }: Partition): void {
    if (canAccess(this.placement, weights)) return;
    const deviceCopy = this.placement.allocate(weights.numel, weights.dtype);
    copyAll(deviceCopy, weights, this.device.compute);
    this.device.compute.synchronize();
    storage.exchange?.(deviceCopy).release();
  }

  storedTile(_: ShardPart, tile: StateTile): OpenTile {
    return withLowerHalves(tile);
  }

  openTile(part: ShardPart, { range }: StateTile, lowTile: OpenTile): OpenTile {
    const high = sliceFlat(required(part.master), range);
    const master = sliceFlat(this.scratch, { offset: 0, numel: range.numel });
    this.joined = { high, lowTile };
    const { [halves.ties]: ties, ...state } = lowTile.state;
    const { order } = this.placement.traffic;
    kernels.joinMaster({ high, low: lowTile.master, ties: required(ties), out: master }, order);
    return { master, state };
  }

  closeTile(_: ShardPart, { master }: OpenTile, changed: boolean): OpenTile {
    const { high, lowTile } = required(this.joined);
    this.joined = null;
    const ties = required(lowTile.state[halves.ties]);
    const { order } = this.placement.traffic;
    if (changed) kernels.splitMaster({ in: master, high, low: lowTile.master, ties }, order);
    for (const tensor of [high, master]) tensor.release();
    return lowTile;
  }

  /** Copies the upper halves, which are the rounded masters, to the weights. */
  refresh({ master, partition }: ShardPart): void {
    this.placement.synchronize();
    copyAll(partition.weights, required(master), this.device.compute);
    this.device.compute.synchronize();
  }

  dispose(): void {
    this.scratch.release();
  }
}
