// The interface of a ZeRO stage: who holds a unit's weights, gradients and optimizer state, and what moves when.
import type { Stream } from '../runtime/stream.js';
import type { Partition } from './partition.js';
import type { Unit } from './unit.js';

/**
 * A row of the grid of verbs and stages; update is the schedules' (schedule/schedule.ts). One rank holds everything: its
 * stage moves nothing (single-rank.ts).
 */
export interface Stage {
  /** What reduced gradients are multiplied with, compared to what the update is to see: their mean, or sum. */
  readonly gradientFactor: number;
  /** Whether weights come with acquire() and go with release(). */
  readonly shardsWeights: boolean;
  /** One per unit, in forward order. */
  readonly partitions: readonly Partition[];
  /** The unit's initial weights are about to be written. */
  adopting(unit: Unit): void;
  /** They have been written, on the compute stream. */
  adopted(unit: Unit): void;
  /** Compute work enqueued from now on may read the unit's weights. */
  acquire(unit: Unit): void;
  /** It no longer does, until the next acquire(). */
  release(unit: Unit): void;
  /** The unit's gradient of one more micro-batch is complete on the compute stream. */
  reduce(unit: Unit): void;
  /** That was the step's last micro-batch: the partition's gradient follows, now or in flush(). */
  settle(unit: Unit): void;
  /** Every unit of this backward was given to reduce(): nothing stays behind, and compute work sees it. */
  flush(): void;
  /** Called when a partition's gradient is complete in the order of `stream`, where partition.ready is recorded. */
  onReduced: ((partition: Partition, stream: Stream) => void) | null;
  /** The partition's weights change in the order of `stream`: all ranks get them, where they hold the whole unit. */
  publish(partition: Partition, stream: Stream): void;
  /** Every partition of the update was published: waiting for weights needs no call of another rank from here on. */
  dispatch(): void;
  dispose(): void;
}
