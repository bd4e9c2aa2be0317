// When optimizer state is updated: the interface of a schedule, whatever home keeps the state.
import type { UpdateSettings } from '../../optim/optimizer.js';
import type { Event, Stream } from '../../runtime/stream.js';
import type { Tensor } from '../../tensor/index.js';
import type { Slot } from '../layout.js';
import type { Partition } from '../partition.js';

/** The coming update: everything about it that is known before its gradients are. */
export interface UpdatePlan {
  readonly settings: UpdateSettings;
  /**
   * The factor that the gradients carry: the loss scale, and more where accumulation was not
   * divided out.
   */
  readonly gradientScale: number;
}

/**
 * A partition, and the stream in whose order its weights change: once `changed`, where others
 * change in it as well.
 */
export type UpdatedPartition = readonly [partition: Partition, stream: Stream, changed?: Event];

/** Who brings updated weights to the other ranks. */
export interface Publisher {
  /**
   * The partition's weights change in the order of `stream`, before `changed`; once per partition
   * and update.
   */
  publish(partition: Partition, stream: Stream, changed?: Event): void;
}

/** What a rank has rounded away of a parameter, and adds to what it exchanges next. */
export interface RankError {
  readonly slot: Slot;
  /**
   * Of its own, each rank all of the parameter ("worker_error"), or of the average that it owns a
   * part of ("server_error").
   */
  readonly name: 'worker_error' | 'server_error';
  /** Its first element, counted from the parameter's. */
  readonly from: number;
  /** Flat, f32; whoever gets it releases it. */
  readonly tensor: Tensor;
}

/**
 * Decides when the partitions of one home are updated. All of it is enqueued, unless it says that
 * it blocks.
 */
export interface Schedule {
  /** The home has taken over a partition; they come in forward order. */
  adopt(partition: Partition): void;
  /** The backward that completes the gradients of `plan` is about to start. */
  prepare(plan: UpdatePlan): void;
  /** The gradient of `partition` is complete once partition.ready has been passed. */
  gradReady(partition: Partition): void;
  /**
   * All gradients have come; begin() and then update() follow. What is tried out already leaves.
   * Does not wait.
   */
  endBackward(): void;
  /**
   * Enqueues what of a partition's update needs no step decision, and is not yet. In forward order;
   * does not wait.
   */
  begin(partition: Partition): void;
  /**
   * Sees to it that every partition is updated, in forward order, and yields each one when its new
   * weights have been enqueued; what is left of the update comes before the end. `control` is on
   * the device, written on the compute stream.
   */
  update(control: Tensor, plan: UpdatePlan): Generator<UpdatedPartition, void>;
  /** Called before weights are read: later compute work sees the updated ones. */
  awaitWeights(partition: Partition): void;
  /** The partition's gradient, from gradReady() to update(): see Home.gradOf. */
  gradOf(partition: Partition): Tensor | null;
  /** Gradient or state of a partition were changed from outside. */
  changed(): void;
  /** Updates that were put off are enqueued: the home's state becomes that of the last one. */
  commit(): void;
  /**
   * Whether ranks may have updated by themselves since their weights were the same. The same on
   * every rank.
   */
  readonly isAdrift: boolean;
  /** Gives all ranks the same weights again, after `applied` updates; they all call it. */
  resync(applied: number, publisher: Publisher): void;
  /** What this rank has rounded away; that of other ranks is other. */
  rankErrors(): Iterable<RankError>;
  /** Bytes of host memory beside the home's. */
  readonly bytes: number;
  /** Likewise of device memory. */
  readonly deviceBytes: number;
  /** Comes before that of the home. */
  dispose(): void;
}
