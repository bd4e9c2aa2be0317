// ZeRO stage 3: weights are sharded too; a unit's are gathered where it is used, its gradient leaves as in stage 2.
// Source: Rajbhandari et al. 2020, P_os+g+p.
import type { Stream } from '../runtime/stream.js';
import type { GatheredWeights } from './gathered-weights.js';
import { type GradientParts, GroupStage } from './group-stage.js';
import { shardOf } from './layout.js';
import { type GradientFlow, localGradients } from './local-gradients.js';
import { Partition } from './partition.js';
import { ShardedGradients } from './sharded-gradients.js';
import type { Unit } from './unit.js';

export interface Stage3Parts extends GradientParts {
  weights: GatheredWeights;
}

export class Stage3 extends GroupStage<Stage3Parts> {
  override readonly shardsWeights = true;
  private readonly gradients: GradientFlow;

  constructor(units: readonly Unit[], parts: Stage3Parts) {
    const { rank, size } = parts.group;
    const partitions = units.map((unit) => {
      const range = shardOf(unit.layout.numel, rank, size);
      return new Partition(unit, range, parts.weights.allocate(range.numel, unit.dtype));
    });
    super(partitions, parts);
    this.gradients = size === 1 ? localGradients : new ShardedGradients(parts);
  }

  override adopting(unit: Unit): void {
    unit.allocate();
  }

  override adopted(unit: Unit): void {
    this.parts.weights.adopt(this.partitionOf(unit));
  }

  override acquire(unit: Unit): void {
    this.parts.weights.acquire(unit);
  }

  override release(unit: Unit): void {
    this.parts.weights.release(unit);
  }

  override reduce(unit: Unit): void {
    this.gradients.reduce(this.partitionOf(unit));
  }

  override settle(unit: Unit): void {
    this.gradients.settle(this.partitionOf(unit), this.onReduced);
  }

  override flush(): void {
    this.parts.weights.settle();
    super.flush();
  }

  override publish(partition: Partition, stream: Stream): void {
    this.parts.weights.publish(partition, stream);
  }

  override dispose(): void {
    this.parts.weights.dispose();
    super.dispose();
  }
}
