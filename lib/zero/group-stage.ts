// What all stages over a group of ranks share: the ranks, one partition per unit, the gradients' exchange.
import type { Stream } from '../runtime/stream.js';
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
  readonly gradientFactor: number;
  readonly shardsWeights: boolean = false;
  onReduced: Stage['onReduced'] = null;
  private readonly byUnit: ReadonlyMap<Unit, Partition>;

  constructor(
    readonly partitions: readonly Partition[],
    protected readonly parts: Parts,
  ) {
    this.gradientFactor = parts.wire.factor;
    this.byUnit = new Map(partitions.map((partition) => [partition.unit, partition]));
  }

  abstract settle(unit: Unit): void;

  adopting(_unit: Unit): void {}

  adopted(_unit: Unit): void {}

  acquire(_unit: Unit): void {}

  release(_unit: Unit): void {}

  reduce(_unit: Unit): void {}

  flush(): void {
    this.parts.gradients.flush();
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
