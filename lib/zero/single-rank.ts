// The stage of a rank that shares nothing out: every partition is its whole unit, and nothing moves.
import { localGradients } from './local-gradients.js';
import { Partition } from './partition.js';
import type { Stage } from './stage.js';
import type { Unit } from './unit.js';

export class SingleRank implements Stage {
  readonly partitions: readonly Partition[];
  readonly gradientFactor = 1;
  readonly shardsWeights = false;
  onReduced: Stage['onReduced'] = null;
  private readonly partitionOf = new Map<Unit, Partition>();

  constructor(units: readonly Unit[]) {
    this.partitions = units.map((unit) => {
      const whole = { offset: 0, numel: unit.layout.numel };
      const partition = new Partition(unit, whole, unit.allocate().retain());
      this.partitionOf.set(unit, partition);
      return partition;
    });
  }

  adopting(): void {}

  adopted(): void {}

  acquire(): void {}

  release(): void {}

  reduce(): void {}

  settle(unit: Unit): void {
    localGradients.settle(this.partitionOf.get(unit) as Partition, this.onReduced);
  }

  flush(): void {}

  publish(): void {}

  dispatch(): void {}

  dispose(): void {
    for (const partition of this.partitions) partition.dispose();
  }
}
