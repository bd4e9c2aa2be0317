// OptimizerState: shares of the partitions on this rank, each with a ShardState and a schedule.
import { required } from '../runtime/required.js';
import type { Tensor } from '../tensor/index.js';
import type { Fragment } from './layout.js';
import type { Publisher, RankError, Schedule, UpdatePlan } from './schedule/schedule.js';
import type { Partition, WeightShard } from './shard.js';
import type { Bytes, LentState } from './state/lent-state.js';
import type { ShardState } from './state/shard-state.js';

/** Partitions with their state and the schedule of their updates. */
export interface Share {
  readonly partitions: readonly Partition[];
  readonly state: ShardState;
  readonly schedule: Schedule;
}

/**
 * Routes each partition to its share. Shares update concurrently; their work is enqueued in forward
 * order. All strategies and schedules give the same bits. Their creators own them.
 */
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
    schedule.adopt(partition);
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
    for (const { schedule } of this.shares) schedule.prepare(plan);
  }

  /** Called when the gradient of `partition` is complete after partition.ready. */
  gradReady(partition: Partition): void {
    this.of(partition).schedule.gradReady(partition);
  }

  /**
   * Updates every partition in forward order over all shares. Calls `publisher` for each partition
   * after its new weights are enqueued. `control` is on the device, written on the compute stream.
   * A share may block for the step decision, so independent work of other shares is enqueued first.
   */
  update(control: Tensor, plan: UpdatePlan, publisher: Publisher): void {
    for (const { schedule } of this.shares) schedule.endBackward();
    for (const partition of this.inForwardOrder) this.of(partition).schedule.begin(partition);
    const updates = new Map(
      this.shares.map(({ state, schedule }) => [state, schedule.update(control, plan)] as const),
    );
    for (const partition of this.inForwardOrder) {
      const next = updates.get(this.of(partition).state)?.next();
      if (next && !next.done) publisher.publish(...next.value);
    }
    for (const rest of updates.values()) for (const one of rest) publisher.publish(...one);
  }

  /**
   * Called before weights are read. Later compute work sees the updated weights. Updates do not
   * change frozen parts.
   */
  awaitWeights(shard: WeightShard): void {
    const partition = shard as Partition;
    this.shareOf.get(partition)?.schedule.awaitWeights(partition);
  }

  /**
   * Lends the master weights (name "master") or the state `name` of a fragment after the last
   * update. To write: change the tensor, call keep() on it, then changed(). The next update uses
   * the new values.
   */
  lend(partition: Partition, fragment: Fragment, name: string): LentState {
    const { state, schedule } = this.of(partition);
    schedule.commit();
    return state.lend(partition, fragment, name);
  }

  /** Whether lend() returns a copy for this partition, which needs memory. */
  lendsCopies(partition: Partition): boolean {
    return this.of(partition).state.lendsCopies;
  }

  /**
   * Returns the partition's gradient between gradReady() and update(): [numel] in the unit's
   * gradDtype, in its present memory; else null. Complete on return. The caller releases it.
   */
  gradOf(partition: Partition): Tensor | null {
    return this.of(partition).schedule.gradOf(partition);
  }

  /** Called after an external change of the partition's gradient or state. */
  changed(partition: Partition): void {
    this.of(partition).schedule.changed();
  }

  /**
   * Refreshes the partition's weights after an external change of master weights, such as a load.
   */
  refresh(partition: Partition): void {
    const { state, schedule } = this.of(partition);
    schedule.changed();
    state.refresh(partition);
  }

  /**
   * Whether ranks may have made local updates since their weights were equal. Equal on every rank.
   */
  get isAdrift(): boolean {
    return this.shares.some(({ schedule }) => schedule.isAdrift);
  }

  /** Makes the weights of all ranks equal, after `applied` updates. All ranks call it. */
  resync(applied: number, publisher: Publisher): void {
    for (const { schedule } of this.shares) schedule.resync(applied, publisher);
  }

  /** Returns this rank's compression errors. The caller releases the tensors. */
  rankErrors(): RankError[] {
    return this.shares.flatMap(({ schedule }) => [...schedule.rankErrors()]);
  }

  /** Waits until every update has reached the weights. */
  synchronize(): void {
    for (const { state, schedule } of this.shares) {
      schedule.commit();
      state.synchronize();
    }
  }

  /** Bytes of state by location. */
  get bytes(): Bytes {
    const sum = { device: 0, host: 0, disk: 0 };
    for (const { state, schedule } of this.shares) {
      const { device, host, disk } = state.bytes;
      sum.device += device + schedule.deviceBytes;
      sum.host += host + schedule.bytes;
      sum.disk += disk;
    }
    return sum;
  }

  private of(partition: Partition): Share {
    return required(this.shareOf.get(partition));
  }
}

/**
 * Selects partitions with about `share` of all elements, spread evenly over the forward. Two
 * processors with rates in this proportion then work in parallel. The first partition is selected
 * if it is not larger than the share: its gradient comes last and its weights are needed first,
 * while the other processor updates the next ones.
 */
export function evenlySpread(
  partitions: readonly Partition[],
  share: number,
): ReadonlySet<Partition> {
  const chosen = new Set<Partition>();
  const total = partitions.reduce((sum, { numel }) => sum + numel, 0);
  const first = partitions[0]?.numel ?? 0;
  let owed = first <= share * total ? Math.max(0, (0.5 - share) * first) : 0;
  for (const partition of partitions) {
    owed += share * partition.numel;
    if (owed < partition.numel / 2) continue;
    owed -= partition.numel;
    chosen.add(partition);
  }
  return chosen;
}

/**
 * Selects the partitions with state on the device if the rest is offloaded: the first ones in
 * forward order, up to `share` of all elements. Their gradients are complete last and their weights
 * are needed first, so a host update could not overlap with other work. Source: DeepSpeed's
 * offload_optimizer.ratio (ZeRO-Offload++, "Twin-Flow").
 */
export function firstInForward(
  partitions: readonly Partition[],
  share: number,
): ReadonlySet<Partition> {
  const total = partitions.reduce((sum, { numel }) => sum + numel, 0);
  const chosen = new Set<Partition>();
  let taken = 0;
  for (const partition of partitions) {
    taken += partition.numel;
    if (taken > share * total) break;
    chosen.add(partition);
  }
  return chosen;
}
