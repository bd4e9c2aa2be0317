// ZeRO stage 2: as stage 1, but every micro-batch's gradient is reduced at once and only the own shard is kept.
// Source: Rajbhandari et al. 2020, P_os+g.
import { ShardedGradients } from './sharded-gradients.js';
import { type ShardedParts, Stage1 } from './stage1.js';
import type { Unit } from './unit.js';

export class Stage2 extends Stage1 {
  private readonly gradients: ShardedGradients;

  constructor(units: readonly Unit[], parts: ShardedParts) {
    super(units, parts);
    this.gradients = new ShardedGradients(parts);
  }

  override reduce(unit: Unit): void {
    this.gradients.reduce(this.partitionOf(unit));
  }

  override settle(unit: Unit): void {
    this.gradients.settle(this.partitionOf(unit), this.onReduced);
  }
}
