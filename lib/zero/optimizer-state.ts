// OptimizerState: master weights and optimizer state of all partitions of a rank, for the engine.
// It forwards each call to the update group of the partition. This file also has DeferredUpdates,
// the schedule that updates after the step decision.

import type { Optimizer, UpdateTensors } from '../optim/optimizer.js';
import { required } from '../runtime/required.js';
import type { Tensor } from '../tensor/index.js';
import type { Fragment } from './layout.js';
import type { Partition, WeightShard } from './partition.js';
import { type Bytes, type LentState, totalBytes } from './state/memory.js';
import type { ShardState } from './state/shard-state.js';
import type {
  Publisher,
  RankError,
  Schedule,
  UpdatedPartition,
  UpdatePlan,
} from './state/strategies.js';

/** Partitions with one ShardState and one schedule of their updates. */
export interface UpdateGroup {
  readonly partitions: readonly Partition[];
  readonly state: ShardState;
  readonly schedule: Schedule;
}

/**
 * Routes each call to the update group of its partition. Enqueues the work of all groups in forward
 * order.
 */
export class OptimizerState {
  readonly updateGroups: UpdateGroup[] = [];
  private readonly groupOf = new Map<Partition, UpdateGroup>();
  private readonly inForwardOrder: Partition[] = [];

  /** Adds an update group. Its partitions belong to no other group. */
  add(group: UpdateGroup): void {
    this.updateGroups.push(group);
    for (const partition of group.partitions) this.groupOf.set(partition, group);
  }

  /** Allocates master weights and state of a partition. Call it in forward order. */
  adopt(partition: Partition): void {
    const { state, schedule } = this.of(partition);
    this.inForwardOrder.push(partition);
    state.adopt(partition);
    schedule.adopt?.(partition);
  }

  /**
   * Writes the master weights of a fragment. `values`: [numel] f32 on the device, read on the
   * compute stream.
   */
  writeMaster(partition: Partition, fragment: Fragment, values: Tensor): void {
    this.of(partition).state.writeMaster(partition, fragment, values);
  }

  /** Called before the backward that completes the gradients of `plan`. */
  prepare(plan: UpdatePlan): void {
    for (const { schedule } of this.updateGroups) schedule.prepare?.(plan);
  }

  /**
   * Called when the gradient of `partition` is complete. Work after the event partition.ready may
   * read it.
   */
  gradReady(partition: Partition): void {
    const { state, schedule } = this.of(partition);
    state.receive(partition);
    schedule.gradReady?.(partition);
  }

  /**
   * Updates all partitions in forward order. `control` holds the step decision on the device. A
   * group may block until it can read the decision. Therefore all groups first enqueue the work
   * that does not depend on it.
   */
  update(control: Tensor, plan: UpdatePlan, publisher: Publisher): void {
    for (const { schedule } of this.updateGroups) schedule.endBackward?.();
    for (const partition of this.inForwardOrder) this.of(partition).schedule.begin?.(partition);
    const updates = new Map(
      this.updateGroups.map(
        ({ state, schedule }) => [state, schedule.update(control, plan)] as const,
      ),
    );
    for (const partition of this.inForwardOrder) {
      const next = updates.get(this.of(partition).state)?.next();
      if (next && !next.done) publisher.publish(...next.value);
    }
    for (const remaining of updates.values())
      for (const partition of remaining) publisher.publish(...partition);
  }

  /** Makes later compute work wait for the updated weights. Called before weights are read. */
  awaitWeights(shard: WeightShard): void {
    const partition = shard as Partition;
    const group = this.groupOf.get(partition);
    group?.schedule.awaitWeights?.(partition);
    group?.state.awaitWeights(partition);
  }

  /**
   * Lends a fragment of the master weights (name "master") or of the state `name`. To change the
   * state, write the tensor, call its keep(), then markChanged().
   */
  lend(partition: Partition, fragment: Fragment, name: string): LentState {
    const { state, schedule } = this.of(partition);
    schedule.commit?.();
    return state.lend(partition, fragment, name);
  }

  /** Returns whether lend() copies the state of this partition. Copies need memory. */
  lendsCopies(partition: Partition): boolean {
    return this.of(partition).state.lendsCopies;
  }

  /**
   * Returns the partition's gradient between gradReady() and update(), else null: [numel] in the
   * dtype of the sum. It stays in the memory that holds it, and is complete on return. The caller
   * releases it.
   */
  gradOf(partition: Partition): Tensor | null {
    const { state, schedule } = this.of(partition);
    return schedule.gradOf ? schedule.gradOf(partition) : state.gradOf(partition);
  }

  /** Called after other code changed the partition's gradient or state. */
  markChanged(partition: Partition): void {
    this.of(partition).schedule.markChanged?.();
  }

  /** Recomputes the weights from the master weights, after a load or another external change. */
  refresh(partition: Partition): void {
    const { state, schedule } = this.of(partition);
    schedule.markChanged?.();
    state.refresh(partition);
  }

  /**
   * Whether ranks may hold different weights, because they updated without an exchange. resync()
   * makes them equal. The value is the same on every rank.
   */
  get needsResync(): boolean {
    return this.updateGroups.some(({ schedule }) => schedule.needsResync ?? false);
  }

  /** Makes the weights of all ranks equal, after `applied` updates. All ranks must call it. */
  resync(applied: number, publisher: Publisher): void {
    for (const { schedule } of this.updateGroups) schedule.resync?.(applied, publisher);
  }

  /** Tensors on the device: master weights, and the rest of the state. */
  get deviceMemory(): { masters: Tensor[]; states: Tensor[] } {
    const all = this.updateGroups.map(({ state }) => state.deviceMemory);
    return {
      masters: all.flatMap(({ masters }) => masters),
      states: all.flatMap(({ states }) => states),
    };
  }

  /** Returns this rank's errors of compressed exchanges. The caller releases the tensors. */
  rankErrors(): RankError[] {
    return this.updateGroups.flatMap(({ schedule }) => [...(schedule.rankErrors?.() ?? [])]);
  }

  /** Blocks until every update has reached the weights. */
  synchronize(): void {
    for (const { state, schedule } of this.updateGroups) {
      schedule.commit?.();
      state.synchronize();
    }
  }

  /** Bytes of state by location. */
  get bytes(): Bytes {
    return totalBytes(
      this.updateGroups.flatMap(({ state, schedule }) => [state.bytes, schedule.bytes]),
    );
  }

  private of(partition: Partition): UpdateGroup {
    return required(this.groupOf.get(partition));
  }
}

/**
 * Updates all partitions after the step decision. On the device, the updates run in the order of
 * compute. On the host, a tile is updated while the next gradient arrives and the last weights
 * leave.
 */
export class DeferredUpdates implements Schedule {
  constructor(
    private readonly state: ShardState,
    private readonly optimizer: Optimizer,
    private readonly partitions: readonly Partition[],
  ) {}

  *update(deviceControl: Tensor, { settings }: UpdatePlan): Generator<UpdatedPartition, void> {
    const { state, optimizer } = this;
    const { kernels, traffic } = state.placement;
    const control = traffic.takeControl(deviceControl);
    for (const partition of this.partitions) {
      const update = (tensors: UpdateTensors): void => optimizer.update(tensors, settings, kernels);
      state.update(partition, control, update, (tile) => state.deliver(partition, tile));
      yield [partition, state.finish(partition)];
    }
  }

  dispose(): void {}
}
