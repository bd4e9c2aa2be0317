// ZeRO stage 2: as stage 1, but every micro-batch's gradient is reduced at once and only the own shard is kept.
// Source: Rajbhandari et al. 2020, P_os+g.
import type { Stream } from '../runtime/stream.js';
import type { Tensor } from '../tensor/index.js';
import { sliceFlat } from './flat.js';
import { shardOf } from './layout.js';
import { Partition } from './partition.js';
import { ShardedGradients } from './sharded-gradients.js';
import type { Stage } from './stage.js';
import { broadcastValues, shareRows } from './stage0.js';
import type { ShardedParts } from './stage1.js';
import type { Unit } from './unit.js';

export class Stage2 implements Stage {
  readonly rank: number;
  readonly worldSize: number;
  readonly gradientFactor: number;
  readonly shardsWeights = false;
  readonly partitions: readonly Partition[];
  onReduced: Stage['onReduced'] = null;
  private readonly partitionOf: Map<Unit, Partition>;
  private readonly gradients: ShardedGradients;

  constructor(
    units: readonly Unit[],
    private readonly parts: ShardedParts,
  ) {
    const { group, wire } = parts;
    this.rank = group.rank;
    this.worldSize = group.size;
    this.gradientFactor = wire.factor;
    this.gradients = new ShardedGradients(parts);
    this.partitions = units.map((unit) => {
      const range = shardOf(unit.layout.numel, group.rank, group.size);
      return new Partition(unit, range, sliceFlat(unit.allocate(), range));
    });
    this.partitionOf = new Map(this.partitions.map((partition) => [partition.unit, partition]));
  }

  broadcast(values: Tensor, root = 0): void {
    broadcastValues(this.parts.group, values, root);
  }

  adopting(): void {}

  adopted(): void {}

  acquire(unit: Unit): void {
    this.parts.weights.acquire(unit);
  }

  release(): void {}

  reduce(unit: Unit): void {
    this.gradients.reduce(this.partitionOf.get(unit) as Partition);
  }

  settle(unit: Unit): void {
    this.gradients.settle(this.partitionOf.get(unit) as Partition, this.onReduced);
  }

  flush(): void {
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
