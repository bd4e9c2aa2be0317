// A ZeRO stage moves gradients from units to the partitions that ranks update, and moves updated
// weights back. This file defines the contracts, and routes each unit to the flows of its group of
// ranks. gradients.ts has the gradient flows; weights.ts and gathered-weights.ts have the weight
// flows.

import { argumentError } from '../runtime/input-errors.js';
import { required } from '../runtime/required.js';
import type { Event, Stream } from '../runtime/stream.js';
import type { GradientFlow, GradientReceiver } from './gradients.js';
import type { Range } from './layout.js';
import { Partition, type WeightShard, type WeightStore } from './partition.js';
import type { Unit, WeightUnit } from './unit.js';

/**
 * The shard's range in its unit, the storage of its weights, and the range that this rank counts
 * (see Partition.counted).
 */
export type OwnedShard = [range: Range, store: WeightStore, counted?: Range];

/**
 * Moves weights between the ranks. ZeroStages documents the methods. A flow omits the methods that
 * it does not need.
 */
export interface WeightFlow {
  /** Whether acquire() gathers weights and release() frees them. */
  readonly isSharded: boolean;
  readonly slotBytes?: number;
  /** Creates the storage of a unit's shard on this rank. The caller owns the storage. */
  keep(unit: WeightUnit): OwnedShard;
  prepareUnit?(unit: WeightUnit): void;
  adoptShard?(shard: WeightShard): void;
  acquire?(unit: WeightUnit): void;
  release?(unit: WeightUnit): void;
  /** Called after the gradients of all units of this backward are sent. */
  endBackward?(): void;
  publish?(shard: WeightShard, stream: Stream, changed?: Event): void;
  dispatch?(): void;
  /** Frees gathered weights. The next acquire() gathers them again. */
  vacate?(): void;
  dispose?(): void;
}

/** The units of a group of ranks, each in forward order, and their flows. */
export interface ZeroStage {
  units: readonly Unit[];
  frozen: readonly WeightUnit[];
  gradients: GradientFlow;
  weights: WeightFlow;
}

/**
 * All stages of a model. Routes each unit to the stage of its group of ranks. One configuration
 * creates all stages, so they agree on sharding and factors. Owns flows, partitions and shards.
 */
export class ZeroStages {
  /** Whether acquire() gathers weights and release() frees them. */
  readonly shardsWeights: boolean;
  /** One partition per trained unit, in forward order. */
  readonly partitions: readonly Partition[];
  /** The shards of frozen units. Their weights are gathered and freed, but never updated. */
  readonly frozen: readonly WeightShard[];
  private readonly partitionOf = new Map<WeightUnit, Partition>();
  private readonly stageOf = new Map<WeightUnit, ZeroStage>();

  /**
   * `units`: the trained units of all stages, in forward order. Throws DS_ARGUMENT if the stages do
   * not agree.
   */
  constructor(
    units: readonly Unit[],
    private readonly stages: readonly ZeroStage[],
  ) {
    this.frozen = stages.flatMap((stage) => {
      const { weights } = stage;
      for (const unit of [...stage.units, ...stage.frozen]) this.stageOf.set(unit, stage);
      for (const unit of stage.units) {
        this.partitionOf.set(unit, new Partition(unit, ...weights.keep(unit)));
      }
      return stage.frozen.map((unit) => new Partition(unit, ...weights.keep(unit)));
    });
    this.partitions = units.map((unit) => required(this.partitionOf.get(unit)));
    this.common('gradient factor', ({ gradients }) => gradients.factor, 1);
    this.shardsWeights = this.common('sharding', ({ weights }) => weights.isSharded, false);
  }

  /** Reduced gradients are this factor times the gradients for the update. */
  get gradientFactor(): number {
    return this.common('gradient factor', ({ gradients }) => gradients.factor, 1);
  }

  /** Bytes of pinned slots for weights on a disk. */
  get slotBytes(): number {
    return this.stages.reduce((sum, { weights }) => sum + (weights.slotBytes ?? 0), 0);
  }

  /** Prepares the memory of a unit. Call it before you write its initial weights. */
  prepareUnit(unit: WeightUnit): void {
    this.of(unit).weights.prepareUnit?.(unit);
  }

  /**
   * Stores this rank's shard of the initial weights. Call it after these are written on the compute
   * stream.
   */
  adoptShard(shard: WeightShard): void {
    this.of(shard.unit).weights.adoptShard?.(shard);
  }

  /** Makes later compute work wait for the unit's weights. */
  acquire(unit: WeightUnit): void {
    this.of(unit).weights.acquire?.(unit);
  }

  /** Called after the last read of the unit's weights before its next acquire(). */
  release(unit: WeightUnit): void {
    this.of(unit).weights.release?.(unit);
  }

  /**
   * Called when the unit's gradient of a micro-batch is complete on the compute stream. With the
   * last micro-batch of a step, `receiver` gets the partition's gradient, here or in flush(). With
   * others, `receiver` is null.
   */
  reduce(unit: WeightUnit, receiver: GradientReceiver | null): void {
    const { gradients } = this.of(unit);
    if (!gradients.takesEach && !receiver) return;
    gradients.reduce(required(this.partitionOf.get(unit)), receiver);
  }

  /**
   * Ends a step early, when no micro-batch follows. `receiver` gets the partition's gradient, here
   * or in flush().
   */
  conclude(unit: Unit, receiver: GradientReceiver): void {
    const { gradients } = this.of(unit);
    const partition = required(this.partitionOf.get(unit));
    // After a flush(), partition.grad holds the sum of all micro-batches so far.
    if (gradients.takesEach) receiver.receiveReduced(partition, partition.device.compute);
    else gradients.reduce(partition, receiver);
  }

  /**
   * Called after the last reduce() of a backward. Makes later compute work wait for all transfers.
   */
  flush(): void {
    for (const { weights, gradients } of this.stages) {
      weights.endBackward?.();
      gradients.route?.buckets.flush();
    }
  }

  /**
   * Called when an update changes the shard's weights in the order of `stream`. If given, `changed`
   * is an event after this change; it is not recorded again before the next publish(). At stages 1
   * and 2, the other ranks receive the weights.
   */
  publish(shard: WeightShard, stream: Stream, changed?: Event): void {
    this.of(shard.unit).weights.publish?.(shard, stream, changed);
    shard.unit.markChanged();
  }

  /**
   * Called after the last publish() of an update. Starts the remaining collectives at the same
   * point on all ranks. A rank that waits for weights then needs no later call of another rank.
   */
  dispatch(): void {
    for (const { weights } of this.stages) weights.dispatch?.();
  }

  /** Frees gathered weights. The next acquire() gathers them again. */
  vacate(): void {
    for (const { weights } of this.stages) weights.vacate?.();
  }

  dispose(): void {
    for (const { weights, gradients } of this.stages) {
      weights.dispose?.();
      gradients.route?.buckets.dispose();
    }
    for (const shard of [...this.partitionOf.values(), ...this.frozen]) shard.dispose();
  }

  private of(unit: WeightUnit): ZeroStage {
    return required(this.stageOf.get(unit));
  }

  /**
   * Returns the value of `of` if all stages agree, and `fallback` without stages. Else throws
   * DS_ARGUMENT.
   */
  private common<T>(what: string, of: (stage: ZeroStage) => T, fallback: T): T {
    const values = [...new Set(this.stages.map(of))];
    if (values.length <= 1) return values[0] ?? fallback;
    throw argumentError(
      'ZeroStages',
      `one ${what} for all stages of a model`,
      values.join(' and '),
      'Make the flows of every group from one configuration.',
    );
  }
}
