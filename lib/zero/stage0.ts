// ZeRO stage 0, data parallelism: every rank holds and updates everything; gradients are summed over all ranks.
import { type GradientParts, GroupStage } from './group-stage.js';
import { shardOf } from './layout.js';
import { Partition } from './partition.js';
import type { Unit } from './unit.js';

export class Stage0 extends GroupStage {
  constructor(units: readonly Unit[], parts: GradientParts) {
    const { rank, size } = parts.group;
    const partitions = units.map((unit) => {
      const { numel } = unit.layout;
      // The norm is summed shard by shard, as in the other stages: the same bits.
      const counted = shardOf(numel, rank, size);
      return new Partition(unit, { offset: 0, numel }, unit.allocate().retain(), counted);
    });
    super(partitions, parts);
  }

  override settle(unit: Unit): void {
    const partition = this.partitionOf(unit);
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
}
