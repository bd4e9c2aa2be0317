// ZeRO stage 1: each rank keeps and updates a shard of every unit's optimizer state; gradients meet at its owner.
// Source: Rajbhandari et al. 2020, P_os.
import type { Stream } from '../runtime/stream.js';
import { sliceFlat } from './flat.js';
import { type GradientParts, GroupStage } from './group-stage.js';
import { shardOf } from './layout.js';
import { Partition } from './partition.js';
import type { Unit } from './unit.js';
import type { WeightsExchange } from './weights-exchange.js';

export interface ShardedParts extends GradientParts {
  weights: WeightsExchange;
}

/** Full gradients accumulate on every rank; they are reduced once per step. */
export class Stage1 extends GroupStage<ShardedParts> {
  constructor(units: readonly Unit[], parts: ShardedParts) {
    const { rank, size } = parts.group;
    const partitions = units.map((unit) => {
      const range = shardOf(unit.layout.numel, rank, size);
      return new Partition(unit, range, sliceFlat(unit.allocate(), range));
    });
    super(partitions, parts);
  }

  override acquire(unit: Unit): void {
    this.parts.weights.acquire(unit);
  }

  override settle(unit: Unit): void {
    const partition = this.partitionOf(unit);
    const full = unit.takeGrad();
    const shard = sliceFlat(full, partition.range);
    const purpose = `gradient of ${unit.name}`;
    this.parts.gradients.add({
      numel: full.numel,
      start: (stream) => this.parts.toOwner(this.parts, shard, full, { stream, purpose }),
      done: (stream) => {
        full.release();
        partition.grad = shard;
        partition.ready.record(stream);
        this.onReduced?.(partition, stream);
      },
    });
  }

  override publish(partition: Partition, stream: Stream): void {
    this.parts.weights.publish(partition, stream);
  }

  override dispatch(): void {
    this.parts.weights.dispatch();
  }

  override dispose(): void {
    this.parts.weights.dispose();
    super.dispose();
  }
}
