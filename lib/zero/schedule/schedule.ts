// The interface of a schedule: decides when optimizer state is updated, for any ShardState.
import type { UpdateSettings } from '../../optim/optimizer.js';
import type { Event, Stream } from '../../runtime/stream.js';
import type { Tensor } from '../../tensor/index.js';
import type { LayoutEntry } from '../layout.js';
import type { Partition } from '../shard.js';

/** Facts on the next update that are known before its gradients. */
export interface UpdatePlan {
  readonly settings: UpdateSettings;
  /**
   * The factor of the gradients: the loss scale, times the accumulation steps if they were not
   * divided out.
   */
  readonly gradientScale: number;
}

/**
 * A partition, and the stream that orders the change of its weights. With `changed`, the change
 * precedes this event, because the stream also changes other partitions.
 */
export type UpdatedPartition = readonly [partition: Partition, stream: Stream, changed?: Event];

/** Sends updated weights to the other ranks. */
export interface Publisher {
  /**
   * The partition's weights change in the order of `stream`, before `changed`. Once per partition
   * and update.
   */
  publish(partition: Partition, stream: Stream, changed?: Event): void;
}

/** A compression error of a parameter on this rank, which the next exchange adds. */
export interface RankError {
  readonly entry: LayoutEntry;
  /**
   * "worker_error": the rank's own error, for the whole parameter. "server_error": the error of the
   * average, for the part that this rank owns.
   */
  readonly name: 'worker_error' | 'server_error';
  /** Its first element, from the parameter's start. */
  readonly from: number;
  /** Flat, f32. The receiver releases it. */
  readonly tensor: Tensor;
}

/**
 * Decides when the partitions of one ShardState are updated. Methods only enqueue work, unless
 * their comment states that they block.
 */
export interface Schedule {
  /** The ShardState has added a partition. Called in forward order. */
  adopt(partition: Partition): void;
  /** Called before the backward that completes the gradients of `plan`. */
  prepare(plan: UpdatePlan): void;
  /** The gradient of `partition` is complete after partition.ready. */
  gradReady(partition: Partition): void;
  /**
   * Called after all gradients; begin() and then update() follow. Uploads of speculative weights
   * start. Does not block.
   */
  endBackward(): void;
  /**
   * Enqueues the remaining part of a partition's update that needs no step decision. Called in
   * forward order. Does not block.
   */
  begin(partition: Partition): void;
  /**
   * Updates every partition in forward order. Yields each one after its new weights are enqueued;
   * the rest of its update is enqueued before the end. `control` is on the device, written on the
   * compute stream.
   */
  update(control: Tensor, plan: UpdatePlan): Generator<UpdatedPartition, void>;
  /** Called before weights are read. Later compute work sees the updated weights. */
  awaitWeights(partition: Partition): void;
  /** The partition's gradient between gradReady() and update(): see ShardState.gradOf. */
  gradOf(partition: Partition): Tensor | null;
  /** Called after an external change of a partition's gradient or state. */
  changed(): void;
  /** Enqueues postponed commits, so that the state is that of the last update. */
  commit(): void;
  /**
   * Whether ranks may have made local updates since their weights were equal. Equal on every rank.
   */
  readonly isAdrift: boolean;
  /** Makes the weights of all ranks equal, after `applied` updates. All ranks call it. */
  resync(applied: number, publisher: Publisher): void;
  /** This rank's compression errors. */
  rankErrors(): Iterable<RankError>;
  /** Bytes of host memory in addition to the ShardState's. */
  readonly bytes: number;
  /** Bytes of device memory in addition to the ShardState's. */
  readonly deviceBytes: number;
  /** Called before dispose() of the ShardState. */
  dispose(): void;
}
