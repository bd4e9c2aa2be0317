// A ZeRO stage moves the gradients of units to the partitions that ranks update, and updated
// weights back. This file routes each unit to the flows of its group of ranks. gradients.ts has the
// gradient flows; weights.ts and gathered-weights.ts have the weight flows.

import { argumentError } from '../runtime/input-errors.js';
import { required } from '../runtime/required.js';
import type { Event, Stream } from '../runtime/stream.js';
import type { GradientFlow, GradientReceiver } from './gradients.js';
import type { Range } from './layout.js';
import { Partition, type WeightShard, type WeightStore } from './partition.js';
import type { Unit, WeightUnit } from './unit.js';

/** The range of a shard, the storage of its weights, and the range that the rank counts. */
export type OwnedShard = [range: Range, store: WeightStore, counted?: Range];

/** Moves weights between the ranks. See ZeroStages; methods without a use in a flow are absent. */
export interface WeightFlow {
  /** Whether weights are gathered by acquire() and freed by release(). */
  readonly isSharded: boolean;
  readonly slotBytes?: number;
  /** Returns the shard of a unit on this rank. The caller owns the storage. */
  keep(unit: WeightUnit): OwnedShard;
  prepareUnit?(unit: WeightUnit): void;
  adoptShard?(shard: WeightShard): void;
  acquire?(unit: WeightUnit): void;
  release?(unit: WeightUnit): void;
  /** Called after every unit's gradient of this backward is sent. */
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
 * Routes each unit to the stage of its group. One configuration creates all stages, so they agree
 * on sharded weights and factors. Owns flows, partitions and shards.
 */
export class ZeroStages {
  /** Whether weights are gathered by acquire() and freed by release(). */
  readonly shardsWeights: boolean;
  /** A partition of each unit, in forward order. */
  readonly partitions: readonly Partition[];
  /** The shards of frozen units: their weights are gathered and freed, and never change. */
  readonly frozen: readonly WeightShard[];
  private readonly partitionOf = new Map<WeightUnit, Partition>();
  private readonly stageOf = new Map<WeightUnit, ZeroStage>();

  /** `units`: the units of all stages, in forward order. Throws DS_ARGUMENT if stages differ. */
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

  /** Factor of reduced gradients relative to the gradients for the update. */
  get gradientFactor(): number {
    return this.common('gradient factor', ({ gradients }) => gradients.factor, 1);
  }

  /** Bytes of pinned slots for weights on a disk. */
  get slotBytes(): number {
    return this.stages.reduce((sum, { weights }) => sum + (weights.slotBytes ?? 0), 0);
  }

  /** Prepares the unit's memory, before its initial weights are written. */
  prepareUnit(unit: WeightUnit): void {
    this.of(unit).weights.prepareUnit?.(unit);
  }

  /** Stores this rank's shard of the initial weights, after they are written on compute. */
  adoptShard(shard: WeightShard): void {
    this.of(shard.unit).weights.adoptShard?.(shard);
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
   * Called when the unit's gradient of a micro-batch is complete on the compute stream. After the
   * last one, `receiver` gets the gradient of the partition, now or in flush(); else it is null.
   */
  reduce(unit: WeightUnit, receiver: GradientReceiver | null): void {
    const { gradients } = this.of(unit);
    if (!gradients.takesEach && !receiver) return;
    gradients.reduce(required(this.partitionOf.get(unit)), receiver);
  }

  /** Called when no micro-batch follows. `receiver` gets the gradient, now or in flush(). */
  conclude(unit: Unit, receiver: GradientReceiver): void {
    const { gradients } = this.of(unit);
    const partition = required(this.partitionOf.get(unit));
    // After a flush(), every shard has arrived.
    if (gradients.takesEach) receiver.receiveReduced(partition, partition.device.compute);
    else gradients.reduce(partition, receiver);
  }

  /** Called after reduce() of every unit. Later compute work sees the results of transfers. */
  flush(): void {
    for (const { weights, gradients } of this.stages) {
      weights.endBackward?.();
      gradients.route?.buckets.flush();
    }
  }

  /**
   * The shard's weights change in the order of `stream`, before `changed` if given; `changed` keeps
   * its mark until the next publish(). Ranks with whole units receive the weights.
   */
  publish(shard: WeightShard, stream: Stream, changed?: Event): void {
    this.of(shard.unit).weights.publish?.(shard, stream, changed);
    shard.unit.markChanged();
  }

  /**
   * Called after every partition of the update is published. Starts their collectives at the same
   * place on all ranks, so that waiting for weights needs no call of another rank.
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

  /** Returns the common value of `of` over the stages; `fallback` without stages. */
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
