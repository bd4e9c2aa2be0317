// SplitMasters: f32 masters as two halves; the bf16 weights are their upper halves.
import { halves, LOWER_HALF, type SplitMaster } from '../../../optim/split-master.js';
import type { Device } from '../../../runtime/device.js';
import { required } from '../../../runtime/required.js';
import type { Stream } from '../../../runtime/stream.js';
import { sliceFlat } from '../../../tensor/flat.js';
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
} from '../strategies.js';
import type { StateTile } from '../tiles.js';
import type { WeightSlots } from '../weight-slots.js';

/**
 * The state has 2.125 instead of 4 bytes per parameter. They restore the f32 master from its bf16
 * weight. Updates must wait for the step decision, because speculation would change the weights.
 * Lent master weights are f32 copies. How an update gets the upper halves:
 *
 *   weights in reach of kernels   in place
 *   with `slots`                  to a slot of host memory and back, tile by tile
 *   else                          with the rest of the tile, through the placement
 */
export class SplitMasters implements Masters {
  static readonly costs: MasterCosts = {
    stored: LOWER_HALF,
    onDevice: 0,
    scratch: 0,
    areWeights: true,
    keepsWeights: false,
  };
  readonly areWeights = SplitMasters.costs.areWeights;
  readonly fragments: SplitFragments;
  readonly route = this;

  constructor(
    device: Device,
    rule: SplitMaster,
    private readonly placement: Placement,
    /** Slots for device weights that CPU threads update. Owned. */
    private readonly slots: WeightSlots | null = null,
  ) {
    this.fragments = new SplitFragments(device, rule, placement);
  }

  get bytes(): Bytes {
    return { device: 0, host: this.slots?.bytes ?? 0, disk: 0 };
  }

  memory({ weights }: Partition): Tensor {
    return weights.retain();
  }

  adopt({ tiles }: ShardPart): void {
    for (const { range } of tiles) this.slots?.makeRoom(range.numel);
  }

  storedTile(part: ShardPart, tile: StateTile): OpenTile {
    if (this.isInPlace(part)) return withLowerHalves(tile);
    const { range, state } = tile;
    const { weights } = part.partition;
    const master = this.slots?.fetch(weights, tile, part.uploaded) ?? sliceFlat(weights, range);
    return { master, state };
  }

  openTile(part: ShardPart, { range }: StateTile, kept: OpenTile): OpenTile {
    if (!this.isInPlace(part)) return kept;
    const { master: low, state } = kept;
    const master = sliceFlat(part.partition.weights, range);
    return { master, state: { ...state, [halves.low]: low } };
  }

  closeTile(part: ShardPart, { master, state }: OpenTile): OpenTile {
    if (!this.isInPlace(part)) return { master, state };
    master.release();
    return { master: required(state[halves.low]), state };
  }

  upload(part: ShardPart, tile: StateTile): void {
    if (this.slots) this.slots.send(part.partition.weights, tile);
    else if (this.isInPlace(part)) this.placement.traffic.holdUploads?.(tile.updated);
  }

  finish(part: ShardPart): Stream {
    const { traffic, storage } = this.placement;
    if (this.slots || this.isInPlace(part)) return traffic.finish(part);
    part.uploaded.record(storage.order);
    return storage.order;
  }

  /** Does nothing: the weights are the upper halves of the masters. */
  refresh(): void {
    this.placement.synchronize();
  }

  dispose(): void {
    this.slots?.dispose();
  }

  private isInPlace({ partition }: ShardPart): boolean {
    return canAccess(this.placement, partition.weights);
  }
}

export function withLowerHalves({ state }: StateTile): OpenTile {
  const { [halves.low]: low, ...rest } = state;
  return { master: required(low).retain(), state: rest };
}
