// ZeRO by composition: a stage is how the gradients and the weights of some units flow between the
// ranks of a group.
import { DsError } from '../errors.js';
import type { Event, Stream } from '../runtime/stream.js';
import type { GradientFlow, GradientReceiver } from './gradient-flow.js';
import type { Partition, WeightPart } from './partition.js';
import type { Unit } from './unit.js';
import type { WeightFlow } from './weight-flow.js';
import type { WeightUnit } from './weight-unit.js';

/**
 * Units whose ranks are one group. Owns the flows, and the partitions and parts that the weight
 * flow makes.
 */
export class ZeroStage {
  /** One per unit, in their order. */
  readonly partitions: readonly Partition[];
  /** Of the frozen units, in their order. */
  readonly frozen: readonly WeightPart[];

  constructor(
    readonly units: readonly Unit[],
    readonly gradients: GradientFlow,
    readonly weights: WeightFlow,
    frozen: readonly WeightUnit[] = [],
  ) {
    this.partitions = units.map((unit) => weights.partitionOf(unit));
    this.frozen = frozen.map((unit) => weights.partOf(unit));
  }

  dispose(): void {
    this.weights.dispose();
    this.gradients.dispose();
    for (const part of [...this.partitions, ...this.frozen]) part.dispose();
  }
}

interface Route {
  partition: Partition;
  gradients: GradientFlow;
}

/**
 * The stages of a model, which send each unit to the group that is its own. One configuration makes
 * all of them: they agree in whether weights are sharded, and in the factor that reduced gradients
 * carry. Owns the stages.
 */
export class ZeroStages {
  /**
   * What reduced gradients are multiplied with, compared to what the update is to see: their mean,
   * or sum.
   */
  get gradientFactor(): number {
    return common(this.stages, 'gradient factor', ({ gradients }) => gradients.factor, 1);
  }
  /** Whether weights come with acquire() and go with release(). */
  readonly shardsWeights: boolean;
  /** One per unit, in forward order. */
  readonly partitions: readonly Partition[];
  /** Likewise of the frozen units, whose weights come and go and never change. */
  readonly frozen: readonly WeightPart[];
  private readonly routes = new Map<Unit, Route>();
  private readonly flows = new Map<WeightUnit, WeightFlow>();

  /**
   * `units` are those of all stages, in forward order. Throws DS_ARGUMENT where stages disagree.
   */
  constructor(
    units: readonly Unit[],
    private readonly stages: readonly ZeroStage[],
  ) {
    for (const { units: own, partitions, frozen, gradients, weights } of stages) {
      own.forEach((unit, i) => {
        this.routes.set(unit, { partition: partitions[i] as Partition, gradients });
        this.flows.set(unit, weights);
      });
      for (const { unit } of frozen) this.flows.set(unit, weights);
    }
    this.partitions = units.map((unit) => this.of(unit).partition);
    this.frozen = stages.flatMap(({ frozen }) => frozen);
    common(stages, 'gradient factor', ({ gradients }) => gradients.factor, 1);
    this.shardsWeights = common(stages, 'sharding', ({ weights }) => weights.isSharded, false);
  }

  /** The unit's initial weights are about to be written. */
  adopting(unit: WeightUnit): void {
    this.flowOf(unit).adopting(unit);
  }

  /** They have been written, on the compute stream. */
  adopted(part: WeightPart): void {
    this.flowOf(part.unit).adopted(part);
  }

  /** Compute work enqueued from now on may read the unit's weights. */
  acquire(unit: WeightUnit): void {
    this.flowOf(unit).acquire(unit);
  }

  /** It no longer does, until the next acquire(). */
  release(unit: WeightUnit): void {
    this.flowOf(unit).release(unit);
  }

  /**
   * The unit's gradient of one more micro-batch is complete on the compute stream. Where it was the
   * step's last, `receiver` is told of the partition's gradient when that is reduced, now or in
   * flush(); else it is null.
   */
  reduce(unit: Unit, receiver: GradientReceiver | null): void {
    const { partition, gradients } = this.of(unit);
    gradients.reduce(partition, receiver);
  }

  /**
   * No micro-batch follows those given to reduce() after all: `receiver` is told, now or in
   * flush().
   */
  conclude(unit: Unit, receiver: GradientReceiver): void {
    const { partition, gradients } = this.of(unit);
    gradients.conclude(partition, receiver);
  }

  /**
   * Every unit of this backward was given to reduce(): nothing stays behind, and compute work sees
   * it.
   */
  flush(): void {
    for (const { gradients, weights } of this.stages) {
      weights.endBackward();
      gradients.flush();
    }
  }

  /**
   * The part's weights change in the order of `stream`, before `changed` where it is given: all
   * ranks get them, where they hold the whole unit.
   */
  publish(part: WeightPart, stream: Stream, changed?: Event): void {
    this.flowOf(part.unit).publish(part, stream, changed);
    part.unit.noteChanged();
  }

  /**
   * Every partition of the update was published: waiting for weights needs no call of another rank
   * from here on.
   */
  dispatch(): void {
    for (const { weights } of this.stages) weights.dispatch();
  }

  dispose(): void {
    for (const stage of this.stages) stage.dispose();
  }

  private of(unit: Unit): Route {
    return this.routes.get(unit) as Route;
  }

  private flowOf(unit: WeightUnit): WeightFlow {
    return this.flows.get(unit) as WeightFlow;
  }
}

/** What `of` is for every stage; `none` where there is no stage. Throws DS_ARGUMENT. */
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
