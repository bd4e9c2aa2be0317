// ZeRO stage 3: weights are sharded too; a unit's are gathered where it is used, its gradient leaves as in stage 2.
// Source: Rajbhandari et al. 2020, P_os+g+p.
import type { Stream } from '../runtime/stream.js';
import type { Tensor } from '../tensor/index.js';
import type { GatheredWeights } from './gathered-weights.js';
import { shardOf } from './layout.js';
import { type GradientFlow, localGradients } from './local-gradients.js';
import { Partition } from './partition.js';
import { ShardedGradients } from './sharded-gradients.js';
import type { Stage } from './stage.js';
import { broadcastValues, type GradientParts, shareRows } from './stage0.js';
import type { Unit } from './unit.js';

export interface Stage3Parts extends GradientParts {
  weights: GatheredWeights;
}

export class Stage3 implements Stage {
  readonly rank: number;
  readonly worldSize: number;
  readonly gradientFactor: number;
  readonly shardsWeights = true;
  readonly partitions: readonly Partition[];
  onReduced: Stage['onReduced'] = null;
  private readonly partitionOf: Map<Unit, Partition>;
  private readonly gradients: GradientFlow;

  constructor(
    units: readonly Unit[],
    private readonly parts: Stage3Parts,
  ) {
    const { group, wire } = parts;
    this.rank = group.rank;
    this.worldSize = group.size;
    this.gradientFactor = wire.factor;
    this.gradients = group.size === 1 ? localGradients : new ShardedGradients(parts);
    this.partitions = units.map((unit) => {
      const range = shardOf(unit.layout.numel, group.rank, group.size);
      const shard = parts.weights.allocate(range.numel, unit.dtype);
      return new Partition(unit, range, shard);
    });
    this.partitionOf = new Map(this.partitions.map((partition) => [partition.unit, partition]));
  }

  broadcast(values: Tensor, root = 0): void {
    broadcastValues(this.parts.group, values, root);
  }

  adopting(unit: Unit): void {
    unit.allocate();
  }

  adopted(unit: Unit): void {
    this.parts.weights.adopt(this.partitionOf.get(unit) as Partition);
  }

  acquire(unit: Unit): void {
    this.parts.weights.acquire(unit);
  }

  release(unit: Unit): void {
    this.parts.weights.release(unit);
  }

  reduce(unit: Unit): void {
    this.gradients.reduce(this.partitionOf.get(unit) as Partition);
  }

  settle(unit: Unit): void {
    this.gradients.settle(this.partitionOf.get(unit) as Partition, this.onReduced);
  }

  flush(): void {
    this.parts.weights.settle();
    this.parts.gradients.flush();
  }

  shareSums(sums: Tensor): void {
    shareRows(this.parts.group, sums);
  }

  publish(partition: Partition, stream: Stream): void {
    this.parts.weights.publish(partition, stream);
  }

  dispose(): void {
    this.parts.gradients.dispose();
    this.parts.weights.dispose();
    for (const partition of this.partitions) partition.dispose();
  }
}
