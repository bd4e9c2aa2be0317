// When optimizer state is updated: the interface of a schedule, whatever home keeps the state.
import type { UpdateSettings } from '../../optim/optimizer.js';
import type { Stream } from '../../runtime/stream.js';
import type { Tensor } from '../../tensor/index.js';
import type { Partition } from '../partition.js';

/** The coming update: everything about it that is known before its gradients are. */
export interface UpdatePlan {
  readonly settings: UpdateSettings;
  /** The factor that the gradients carry: the loss scale, and more where accumulation was not divided out. */
  readonly gradientScale: number;
}

/** Who brings updated weights to the other ranks. */
export interface Publisher {
  /** The partition's weights change in the order of `stream`; it comes once per partition and update. */
  publish(partition: Partition, stream: Stream): void;
}

/** Decides when the partitions of one home are updated. All of it is enqueued, unless it says that it blocks. */
export interface Schedule {
  /** The home has taken over a partition; they come in forward order. */
  adopt(partition: Partition): void;
  /** The backward that completes the gradients of `plan` is about to start. */
  prepare(plan: UpdatePlan): void;
  /** The gradient of `partition` is complete once partition.ready has been passed. */
  gradReady(partition: Partition): void;
  /**
   * Sees to it that every partition is updated, in forward order, and reports each one when its new weights have been
   * enqueued. `control` is on the device, written on the compute stream.
   */
  update(control: Tensor, plan: UpdatePlan, publisher: Publisher): void;
  /** Called before weights are read: later compute work sees the updated ones. */
  awaitWeights(partition: Partition): void;
  /** The partition's gradient, from gradReady() to update(): see Home.gradOf. */
  gradOf(partition: Partition): Tensor | null;
  /** Gradient or state of a partition were changed from outside. */
  changed(): void;
  /** Updates that were put off are enqueued: the home's state becomes that of the last one. */
  commit(): void;
  /** Bytes of host memory beside the home's. */
  readonly bytes: number;
  /** Comes before that of the home. */
  dispose(): void;
}
