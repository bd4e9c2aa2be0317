// ZeRO stage 0, data parallelism: every rank holds and updates everything; gradients are summed over all ranks.
import type { Tensor } from '../tensor/index.js';
import type { Collectives } from './collectives.js';
import type { Exchange } from './exchange.js';
import { shardOf } from './layout.js';
import { Partition } from './partition.js';
import type { Stage } from './stage.js';
import type { ToOwner } from './to-owner.js';
import type { Unit } from './unit.js';
import type { Wire } from './wire.js';

/** What every stage over several ranks is made of. The stage owns the exchange. */
export interface GradientParts {
  group: Collectives;
  wire: Wire;
  /** How a unit's summed gradient reaches the owners of its shards. */
  toOwner: ToOwner;
  /** Gradients, in the order of backward. */
  gradients: Exchange;
}

export class Stage0 implements Stage {
  readonly rank: number;
  readonly worldSize: number;
  readonly gradientFactor: number;
  readonly shardsWeights = false;
  readonly partitions: readonly Partition[];
  onReduced: Stage['onReduced'] = null;
  private readonly partitionOf: Map<Unit, Partition>;

  constructor(
    units: readonly Unit[],
    private readonly parts: GradientParts,
  ) {
    const { group, wire } = parts;
    this.rank = group.rank;
    this.worldSize = group.size;
    this.gradientFactor = wire.factor;
    this.partitions = units.map((unit) => {
      const { numel } = unit.layout;
      // The norm is summed shard by shard, as in the other stages: the same bits.
      const counted = shardOf(numel, group.rank, group.size);
      return new Partition(unit, { offset: 0, numel }, unit.allocate().retain(), counted);
    });
    this.partitionOf = new Map(this.partitions.map((partition) => [partition.unit, partition]));
  }

  broadcast(values: Tensor, root = 0): void {
    broadcastValues(this.parts.group, values, root);
  }

  adopting(): void {}

  adopted(): void {}

  acquire(): void {}

  release(): void {}

  reduce(): void {}

  settle(unit: Unit): void {
    const partition = this.partitionOf.get(unit) as Partition;
    const grad = unit.takeGrad();
    const purpose = `gradient of ${unit.name}`;
    this.parts.gradients.add({
      numel: grad.numel,
      start: (stream) => this.parts.wire.allReduce(grad, { stream, purpose }),
      done: (stream) => {
        partition.grad = grad;
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

  publish(): void {}

  dispose(): void {
    this.parts.gradients.dispose();
    for (const partition of this.partitions) partition.dispose();
  }
}

/** All-gathers [ranks, n] in place, every rank's row, in the order of the compute stream. */
export function shareRows(group: Collectives, rows: Tensor): void {
  const width = rows.numel / group.size;
  const { compute } = rows.device;
  const flat = rows.alias([rows.numel], undefined, rows.offset);
  const own = rows.alias([width], undefined, rows.offset + group.rank * width);
  group.allGather(flat, own, { stream: compute, purpose: 'gradient norms' }).wait(compute);
  own.dispose();
  flat.dispose();
}

/** The values of `root` for all, in the order of the compute stream. */
export function broadcastValues(group: Collectives, values: Tensor, root: number): void {
  const { compute } = values.device;
  group.broadcast(values, root, { stream: compute, purpose: 'values of one rank' }).wait(compute);
}
