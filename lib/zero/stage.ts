// A ZeRO stage moves the gradients of units to the partitions that ranks update, and updated
// weights back. This file routes each unit to the flows of its group of ranks.
import { DsError } from '../errors.js';
import { required } from '../runtime/required.js';
import type { Event, Stream } from '../runtime/stream.js';
import type { Buckets } from './bucket.js';
import type { Range } from './layout.js';
import { Partition, WeightShard, type WeightStore } from './shard.js';
import type { Unit, WeightUnit } from './unit.js';

/** Receives the gradients of a step, one partition at a time. */
export interface GradientReceiver {
  /**
   * Called when partition.grad is complete in the order of `stream`. Records partition.ready there.
   */
  reduced(partition: Partition, stream: Stream): void;
}

/** Moves gradients from a unit to the partition that this rank updates. See ZeroStages. */
export interface GradientFlow {
  /** Factor of reduced gradients relative to the gradients for the update. */
  readonly factor: number;
  reduce(partition: Partition, receiver: GradientReceiver | null): void;
  conclude(partition: Partition, receiver: GradientReceiver): void;
}

/**
 * The range of a shard in its unit, the storage of its weights, and the range that this rank
 * counts.
 */
export type Kept = [range: Range, store: WeightStore, counted?: Range];

/** Moves weights between the ranks. See ZeroStages; methods without a use in a flow are absent. */
export interface WeightFlow {
  /** Whether weights are gathered by acquire() and freed by release(). */
  readonly isSharded: boolean;
  readonly slotBytes?: number;
  /** Returns the shard of a unit on this rank. The caller owns the storage. */
  keep(unit: WeightUnit): Kept;
  adopting?(unit: WeightUnit): void;
  adopted?(shard: WeightShard): void;
  acquire?(unit: WeightUnit): void;
  release?(unit: WeightUnit): void;
  /** Called after every unit's gradient of this backward is sent. */
  endBackward?(): void;
  publish?(shard: WeightShard, stream: Stream, changed?: Event): void;
  dispatch?(): void;
  dispose?(): void;
}

/** The flows of a group of ranks. The stage owns them. */
interface Flows {
  gradients: GradientFlow;
  /** Carries the gradients; null if no rank needs gradients of another rank. */
  buckets: Buckets | null;
  weights: WeightFlow;
}

/**
 * Units with the same group of ranks. Owns the flows, and the partitions and shards of the units.
 */
export class ZeroStage {
  /** One per unit, in their order. */
  readonly partitions: readonly Partition[];
  /** Of the frozen units, in their order. */
  readonly frozen: readonly WeightShard[];

  constructor(
    units: readonly Unit[],
    readonly flows: Flows,
    frozen: readonly WeightUnit[] = [],
  ) {
    const { weights } = flows;
    this.partitions = units.map((unit) => new Partition(unit, ...weights.keep(unit)));
    this.frozen = frozen.map((unit) => new WeightShard(unit, ...weights.keep(unit)));
  }

  dispose(): void {
    this.flows.weights.dispose?.();
    this.flows.buckets?.dispose();
    for (const shard of [...this.partitions, ...this.frozen]) shard.dispose();
  }
}

/**
 * The stages of a model; routes each unit to its group. One configuration creates all of them, so
 * they agree on sharded weights and on the factor of reduced gradients. Owns the stages.
 */
export class ZeroStages {
  /** Whether weights are gathered by acquire() and freed by release(). */
  readonly shardsWeights: boolean;
  /** One per unit, in forward order. */
  readonly partitions: readonly Partition[];
  /** Of the frozen units. Their weights are gathered and freed, and never change. */
  readonly frozen: readonly WeightShard[];
  private readonly partitionOf = new Map<Unit, Partition>();
  private readonly flowsOf = new Map<WeightUnit, Flows>();

  /** `units`: the units of all stages, in forward order. Throws DS_ARGUMENT if stages differ. */
  constructor(
    units: readonly Unit[],
    private readonly stages: readonly ZeroStage[],
  ) {
    for (const { partitions, frozen, flows } of stages) {
      for (const partition of partitions) this.partitionOf.set(partition.unit, partition);
      for (const { unit } of [...partitions, ...frozen]) this.flowsOf.set(unit, flows);
    }
    this.partitions = units.map((unit) => required(this.partitionOf.get(unit)));
    this.frozen = stages.flatMap(({ frozen }) => frozen);
    this.common('gradient factor', ({ gradients }) => gradients.factor, 1);
    this.shardsWeights = this.common('sharding', ({ weights }) => weights.isSharded, false);
  }

  /**
   * Factor of reduced gradients relative to the gradients for the update, which are means or sums.
   */
  get gradientFactor(): number {
    return this.common('gradient factor', ({ gradients }) => gradients.factor, 1);
  }

  /** Bytes of pinned slots for weights on a disk. */
  get slotBytes(): number {
    return this.stages.reduce((sum, { flows }) => sum + (flows.weights.slotBytes ?? 0), 0);
  }

  /** Called before the unit's initial weights are written. */
  adopting(unit: WeightUnit): void {
    this.of(unit).weights.adopting?.(unit);
  }

  /** Called after they are written, on the compute stream. */
  adopted(shard: WeightShard): void {
    this.of(shard.unit).weights.adopted?.(shard);
  }

  /** Lets later compute work read the unit's weights. */
  acquire(unit: WeightUnit): void {
    this.of(unit).weights.acquire?.(unit);
  }

  /** Ends the reads until the next acquire(). */
  release(unit: WeightUnit): void {
    this.of(unit).weights.release?.(unit);
  }

  /**
   * Called when the unit's gradient of a micro-batch is complete on the compute stream. If it was
   * the last one of the step, `receiver` gets the reduced gradient of the partition, now or in
   * flush(). Else `receiver` is null.
   */
  reduce(unit: Unit, receiver: GradientReceiver | null): void {
    this.of(unit).gradients.reduce(required(this.partitionOf.get(unit)), receiver);
  }

  /**
   * Called when no micro-batch follows after reduce() and flush(). `receiver` gets the gradient,
   * now or in the next flush().
   */
  conclude(unit: Unit, receiver: GradientReceiver): void {
    this.of(unit).gradients.conclude(required(this.partitionOf.get(unit)), receiver);
  }

  /**
   * Called after reduce() of every unit in this backward. Finishes all transfers; later compute
   * work sees the results.
   */
  flush(): void {
    for (const { flows } of this.stages) {
      flows.weights.endBackward?.();
      flows.buckets?.flush();
    }
  }

  /**
   * The shard's weights change in the order of `stream`, before `changed` if given; `changed` keeps
   * its mark until the next publish(). Ranks with whole units receive the weights.
   */
  publish(shard: WeightShard, stream: Stream, changed?: Event): void {
    this.of(shard.unit).weights.publish?.(shard, stream, changed);
    shard.unit.noteChanged();
  }

  /**
   * Called after every partition of the update is published. Starts their collectives at the same
   * place on all ranks, so that waiting for weights needs no call of another rank.
   */
  dispatch(): void {
    for (const { flows } of this.stages) flows.weights.dispatch?.();
  }

  dispose(): void {
    for (const stage of this.stages) stage.dispose();
  }

  private of(unit: WeightUnit): Flows {
    return required(this.flowsOf.get(unit));
  }

  /** Returns the common value of `of` over the stages; `none` without stages. */
  private common<T>(what: string, of: (flows: Flows) => T, none: T): T {
    const values = [...new Set(this.stages.map(({ flows }) => of(flows)))];
    if (values.length <= 1) return values[0] ?? none;
    throw new DsError({
      code: 'DS_ARGUMENT',
      op: 'ZeroStages',
      expected: `one ${what} for all stages of a model`,
      got: values.join(' and '),
      hint: 'Make the flows of every group from one configuration.',
    });
  }
}
