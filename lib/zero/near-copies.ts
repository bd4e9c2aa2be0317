// Secondary copies of gathered weights on few nearby ranks (zero_hpz_partition_size), for repeated
// gathers. Source: ZeRO++'s hpZ.

import { copyFlat } from '../tensor/flat.js';
import { held, Tensor } from '../tensor/index.js';
import type { At, Collectives, Work } from './collectives.js';
import { shardOf } from './layout.js';
import type { WeightUnit } from './weight-unit.js';

/**
 * This rank's shards of the secondary copy. They exist from the first gather after an update to the
 * next update.
 */
export class NearCopies {
  private readonly shards = new Map<WeightUnit, Tensor>();

  constructor(
    /** The ranks that divide the copy. */
    private readonly group: Collectives,
  ) {}

  /** Fills `flat` [numel] from the copy. Returns null if there is no copy of these weights yet. */
  gather(unit: WeightUnit, flat: Tensor, at: At): Work | null {
    const shard = this.shards.get(unit);
    return shard ? this.group.allGather(flat, shard, at) : null;
  }

  /** Stores this rank's part of `flat` [numel], in the order of the compute stream. */
  keep(unit: WeightUnit, flat: Tensor): void {
    if (this.shards.has(unit)) return;
    const part = shardOf(flat.numel, this.group.rank, this.group.size);
    const { numel } = part;
    const shard = held(() => Tensor.empty([numel], flat.dtype, flat.device));
    copyFlat(shard, { offset: 0, numel }, flat, part, flat.device.compute);
    this.shards.set(unit, shard);
  }

  /** Drops the copy, because the unit's weights change. No gather of the copy is running. */
  forget(unit: WeightUnit): void {
    this.shards.get(unit)?.release();
    this.shards.delete(unit);
  }

  dispose(): void {
    for (const unit of [...this.shards.keys()]) this.forget(unit);
  }
}
