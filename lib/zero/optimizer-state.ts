// OptimizerState divides the partitions of a rank into shares. Each share has a ShardState and a
// schedule. This file also has the schedule that updates after the step decision.

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

/** Partitions with their state and the schedule of their updates. */
export interface Share {
  readonly partitions: readonly Partition[];
  readonly state: ShardState;
  readonly schedule: Schedule;
}

/** Routes each partition to its share. Work of shares is enqueued in forward order. */
export class OptimizerState {
  readonly shares: Share[] = [];
  private readonly shareOf = new Map<Partition, Share>();
  private readonly inForwardOrder: Partition[] = [];

  /** Adds a share with new partitions. */
  add(share: Share): void {
    this.shares.push(share);
    for (const partition of share.partitions) this.shareOf.set(partition, share);
  }

  /** Allocates master weights and state of a partition. Called in forward order. */
  adopt(partition: Partition): void {
    const { state, schedule } = this.of(partition);
    this.inForwardOrder.push(partition);
    state.adopt(partition);
    schedule.adopt?.(partition);
  }

  /** Writes masters of a fragment. `values`: [numel] f32, read on the compute stream. */
  writeMaster(partition: Partition, fragment: Fragment, values: Tensor): void {
    this.of(partition).state.writeMaster(partition, fragment, values);
  }

  /** Called before the backward that completes the gradients of `plan`. */
  prepare(plan: UpdatePlan): void {
    for (const { schedule } of this.shares) schedule.prepare?.(plan);
  }

  /** Called when the gradient of `partition` is complete after partition.ready. */
  gradReady(partition: Partition): void {
    const { state, schedule } = this.of(partition);
    state.receive(partition);
    schedule.gradReady?.(partition);
  }

  /**
   * Updates every partition in forward order over all shares, after the decision `control` on the
   * device. A share may block for it, so independent work of other shares is enqueued first.
   */
  update(control: Tensor, plan: UpdatePlan, publisher: Publisher): void {
    for (const { schedule } of this.shares) schedule.endBackward?.();
    for (const partition of this.inForwardOrder) this.of(partition).schedule.begin?.(partition);
    const updates = new Map(
      this.shares.map(({ state, schedule }) => [state, schedule.update(control, plan)] as const),
    );
    for (const partition of this.inForwardOrder) {
      const next = updates.get(this.of(partition).state)?.next();
      if (next && !next.done) publisher.publish(...next.value);
    }
    for (const remaining of updates.values())
      for (const partition of remaining) publisher.publish(...partition);
  }

  /** Called before weights are read. Later compute work sees the updated weights. */
  awaitWeights(shard: WeightShard): void {
    const partition = shard as Partition;
    const share = this.shareOf.get(partition);
    share?.schedule.awaitWeights?.(partition);
    share?.state.awaitWeights(partition);
  }

  /**
   * Lends the masters (name "master") or the state `name` of a fragment. To write: change the
   * tensor, call keep() on it, then markChanged().
   */
  lend(partition: Partition, fragment: Fragment, name: string): LentState {
    const { state, schedule } = this.of(partition);
    schedule.commit?.();
    return state.lend(partition, fragment, name);
  }

  /** Returns whether lend() returns a copy for this partition, which needs memory. */
  lendsCopies(partition: Partition): boolean {
    return this.of(partition).state.lendsCopies;
  }

  /**
   * Returns the partition's gradient between gradReady() and update(): [numel] in the dtype of
   * the sum, in its present memory; else null. Complete on return. The caller releases it.
   */
  gradOf(partition: Partition): Tensor | null {
    const { state, schedule } = this.of(partition);
    return schedule.gradOf ? schedule.gradOf(partition) : state.gradOf(partition);
  }

  /** Marks the partition's gradient or state as changed by other code. */
  markChanged(partition: Partition): void {
    this.of(partition).schedule.markChanged?.();
  }

  /** Refreshes the weights after an external change of masters, such as a load. */
  refresh(partition: Partition): void {
    const { state, schedule } = this.of(partition);
    schedule.markChanged?.();
    state.refresh(partition);
  }

  /** Whether weights of ranks may differ by local updates. Equal on every rank. */
  get isAdrift(): boolean {
    return this.shares.some(({ schedule }) => schedule.isAdrift ?? false);
  }

  /** Makes the weights of all ranks equal, after `applied` updates. All ranks call it. */
  resync(applied: number, publisher: Publisher): void {
    for (const { schedule } of this.shares) schedule.resync?.(applied, publisher);
  }

  /** Device memory of masters and of the rest of the state. */
  get deviceMemory(): { masters: Tensor[]; states: Tensor[] } {
    const all = this.shares.map(({ state }) => state.deviceMemory);
    return {
      masters: all.flatMap(({ masters }) => masters),
      states: all.flatMap(({ states }) => states),
    };
  }

  /** Returns this rank's compression errors. The caller releases the tensors. */
  rankErrors(): RankError[] {
    return this.shares.flatMap(({ schedule }) => [...(schedule.rankErrors?.() ?? [])]);
  }

  /** Waits until every update has reached the weights. */
  synchronize(): void {
    for (const { state, schedule } of this.shares) {
      schedule.commit?.();
      state.synchronize();
    }
  }

  /** Bytes of state by location. */
  get bytes(): Bytes {
    return totalBytes(this.shares.flatMap(({ state, schedule }) => [state.bytes, schedule.bytes]));
  }

  private of(partition: Partition): Share {
    return required(this.shareOf.get(partition));
  }
}

/**
 * Updates every range separately after the step decision. On the device this is one pass in the
 * order of compute. On the host, the update of a tile overlaps the copies of the next gradient and
 * of the last weights.
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
