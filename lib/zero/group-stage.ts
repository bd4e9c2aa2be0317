// What all stages over a group of ranks share: the ranks, one partition per unit, the gradients' exchange.
import type { Stream } from '../runtime/stream.js';
import type { Tensor } from '../tensor/index.js';
import type { Collectives } from './collectives.js';
import type { Exchange } from './exchange.js';
import type { Partition } from './partition.js';
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

/** Verbs do nothing unless a stage says otherwise; only settle() is every stage's own. Owns the partitions. */
export abstract class GroupStage<Parts extends GradientParts = GradientParts> implements Stage {
  readonly rank: number;
  readonly worldSize: number;
  readonly gradientFactor: number;
  readonly shardsWeights: boolean = false;
  onReduced: Stage['onReduced'] = null;
  private readonly byUnit: ReadonlyMap<Unit, Partition>;

  constructor(
    readonly partitions: readonly Partition[],
    protected readonly parts: Parts,
  ) {
    const { group, wire } = parts;
    this.rank = group.rank;
    this.worldSize = group.size;
    this.gradientFactor = wire.factor;
    this.byUnit = new Map(partitions.map((partition) => [partition.unit, partition]));
  }

  abstract settle(unit: Unit): void;

  broadcast(values: Tensor, root = 0): void {
    const { compute } = values.device;
    const at = { stream: compute, purpose: 'values of one rank' };
    this.parts.group.broadcast(values, root, at).wait(compute);
  }

  adopting(_unit: Unit): void {}

  adopted(_unit: Unit): void {}

  acquire(_unit: Unit): void {}

  release(_unit: Unit): void {}

  reduce(_unit: Unit): void {}

  flush(): void {
    this.parts.gradients.flush();
  }

  shareSums(sums: Tensor): void {
    shareRows(this.parts.group, sums);
  }

  publish(_partition: Partition, _stream: Stream): void {}

  dispatch(): void {}

  dispose(): void {
    this.parts.gradients.dispose();
    for (const partition of this.partitions) partition.dispose();
  }

  protected partitionOf(unit: Unit): Partition {
    return this.byUnit.get(unit) as Partition;
  }
}

/** All-gathers [ranks, n] in place, every rank's row, in the order of the compute stream. */
function shareRows(group: Collectives, rows: Tensor): void {
  const width = rows.numel / group.size;
  const { compute } = rows.device;
  const flat = rows.alias([rows.numel], undefined, rows.offset);
  const own = rows.alias([width], undefined, rows.offset + group.rank * width);
  group.allGather(flat, own, { stream: compute, purpose: 'gradient norms' }).wait(compute);
  own.dispose();
  flat.dispose();
}
