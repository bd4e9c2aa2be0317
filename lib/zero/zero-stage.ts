// A ZeRO stage: the gradient flow and the weight flow of units over a group of ranks.

import { DsError } from '../errors.js';
import { required } from '../runtime/required.js';
import type { Event, Stream } from '../runtime/stream.js';
import type { GradientFlow, GradientReceiver } from './gradient-flow.js';
import type { Partition, WeightShard } from './shard.js';
import type { Unit } from './unit.js';
import type { WeightFlow } from './weight-flow.js';
import type { WeightUnit } from './weight-unit.js';

/**
 * Units with the same group of ranks. Owns the flows, and the partitions and shards of the weight
 * flow.
 */
export class ZeroStage {
  /** One per unit, in their order. */
  readonly partitions: readonly Partition[];
  /** Of the frozen units, in their order. */
  readonly frozen: readonly WeightShard[];

  constructor(
    readonly units: readonly Unit[],
    readonly gradients: GradientFlow,
    readonly weights: WeightFlow,
    frozen: readonly WeightUnit[] = [],
  ) {
    this.partitions = units.map((unit) => weights.partitionOf(unit));
    this.frozen = frozen.map((unit) => weights.shardOf(unit));
  }

  dispose(): void {
    this.weights.dispose();
    this.gradients.dispose();
    for (const shard of [...this.partitions, ...this.frozen]) shard.dispose();
  }
}

interface Route {
  partition: Partition;
  gradients: GradientFlow;
}

/**
 * The stages of a model; routes each unit to its group. One configuration creates all of them, so
 * they agree on sharded weights and on the factor of reduced gradients. Owns the stages.
 */
export class ZeroStages {
  /**
   * Factor of reduced gradients relative to the gradients for the update, which are means or sums.
   */
  get gradientFactor(): number {
    return common(this.stages, 'gradient factor', ({ gradients }) => gradients.factor, 1);
  }
  /** Whether weights are gathered by acquire() and freed by release(). */
  readonly shardsWeights: boolean;
  /** One per unit, in forward order. */
  readonly partitions: readonly Partition[];
  /** Of the frozen units. Their weights are gathered and freed, and never change. */
  readonly frozen: readonly WeightShard[];
  private readonly routes = new Map<Unit, Route>();
  private readonly flows = new Map<WeightUnit, WeightFlow>();

  /** `units`: the units of all stages, in forward order. Throws DS_ARGUMENT if stages differ. */
  constructor(
    units: readonly Unit[],
    private readonly stages: readonly ZeroStage[],
  ) {
    for (const { units: own, partitions, frozen, gradients, weights } of stages) {
      own.forEach((unit, i) => {
        this.routes.set(unit, { partition: required(partitions[i]), gradients });
        this.flows.set(unit, weights);
      });
      for (const { unit } of frozen) this.flows.set(unit, weights);
    }
    this.partitions = units.map((unit) => this.of(unit).partition);
    this.frozen = stages.flatMap(({ frozen }) => frozen);
    common(stages, 'gradient factor', ({ gradients }) => gradients.factor, 1);
    this.shardsWeights = common(stages, 'sharding', ({ weights }) => weights.isSharded, false);
  }

  /** Bytes of pinned slots for weights on a disk. */
  get slotBytes(): number {
    return this.stages.reduce((sum, { weights }) => sum + weights.slotBytes, 0);
  }

  /** Called before the unit's initial weights are written. */
  adopting(unit: WeightUnit): void {
    this.flowOf(unit).adopting(unit);
  }

  /** Called after they are written, on the compute stream. */
  adopted(shard: WeightShard): void {
    this.flowOf(shard.unit).adopted(shard);
  }

  /** Lets later compute work read the unit's weights. */
  acquire(unit: WeightUnit): void {
    this.flowOf(unit).acquire(unit);
  }

  /** Ends the reads until the next acquire(). */
  release(unit: WeightUnit): void {
    this.flowOf(unit).release(unit);
  }

  /**
   * Called when the unit's gradient of a micro-batch is complete on the compute stream. If it was
   * the last one of the step, `receiver` gets the reduced gradient of the partition, now or in
   * flush(). Else `receiver` is null.
   */
  reduce(unit: Unit, receiver: GradientReceiver | null): void {
    const { partition, gradients } = this.of(unit);
    gradients.reduce(partition, receiver);
  }

  /**
   * Called when no micro-batch follows after reduce(). `receiver` gets the gradient, now or in
   * flush().
   */
  conclude(unit: Unit, receiver: GradientReceiver): void {
    const { partition, gradients } = this.of(unit);
    gradients.conclude(partition, receiver);
  }

  /**
   * Called after reduce() of every unit in this backward. Finishes all transfers; later compute
   * work sees the results.
   */
  flush(): void {
    for (const { gradients, weights } of this.stages) {
      weights.endBackward();
      gradients.flush();
    }
  }

  /**
   * The shard's weights change in the order of `stream`, before `changed` if given. Ranks with
   * whole units receive them.
   */
  publish(shard: WeightShard, stream: Stream, changed?: Event): void {
    this.flowOf(shard.unit).publish(shard, stream, changed);
    shard.unit.noteChanged();
  }

  /**
   * Called after every partition of the update is published. Afterwards, waiting for weights needs
   * no call of another rank.
   */
  dispatch(): void {
    for (const { weights } of this.stages) weights.dispatch();
  }

  dispose(): void {
    for (const stage of this.stages) stage.dispose();
  }

  private of(unit: Unit): Route {
    return required(this.routes.get(unit));
  }

  private flowOf(unit: WeightUnit): WeightFlow {
    return required(this.flows.get(unit));
  }
}

/** Returns the common value of `of` over the stages; `none` without stages. Throws DS_ARGUMENT. */
function common<T>(
  stages: readonly ZeroStage[],
  what: string,
  of: (stage: ZeroStage) => T,
  none: T,
): T {
  const values = [...new Set(stages.map(of))];
  if (values.length <= 1) return values[0] ?? none;
  throw new DsError({
    code: 'DS_ARGUMENT',
    op: 'ZeroStages',
    expected: `one ${what} for all stages of a model`,
    got: values.join(' and '),
    hint: 'Make the flows of every group from one configuration.',
  });
}
