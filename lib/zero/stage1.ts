// ZeRO stage 1: each rank keeps and updates a shard of every unit's optimizer state; gradients meet at its owner.
// Source: Rajbhandari et al. 2020, P_os.
import type { Stream } from '../runtime/stream.js';
import type { Tensor } from '../tensor/index.js';
import { sliceFlat } from './flat.js';
import { shardOf } from './layout.js';
import { Partition } from './partition.js';
import type { Stage } from './stage.js';
import { broadcastValues, type GradientParts, shareRows } from './stage0.js';
import type { Unit } from './unit.js';
import type { WeightsExchange } from './weights-exchange.js';

export interface ShardedParts extends GradientParts {
  weights: WeightsExchange;
}

/** Full gradients accumulate on every rank; they are reduced once per step. */
export class Stage1 implements Stage {
  readonly rank: number;
  readonly worldSize: number;
  readonly gradientFactor: number;
  readonly shardsWeights = false;
  readonly partitions: readonly Partition[];
  onReduced: Stage['onReduced'] = null;
  private readonly partitionOf: Map<Unit, Partition>;

  constructor(
    units: readonly Unit[],
    private readonly parts: ShardedParts,
  ) {
    const { group, wire } = parts;
    this.rank = group.rank;
    this.worldSize = group.size;
    this.gradientFactor = wire.factor;
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

  reduce(): void {}

  settle(unit: Unit): void {
    const partition = this.partitionOf.get(unit) as Partition;
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
