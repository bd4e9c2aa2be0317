// The optimizer's state on this rank: shares of the partitions, each with a home and a schedule of
// its own.
import type { Tensor } from '../tensor/index.js';
import type { Home } from './home/home.js';
import type { Bytes, LentState } from './home/lent-state.js';
import type { Piece } from './layout.js';
import type { Partition, WeightPart } from './partition.js';
import type { Publisher, RankError, Schedule, UpdatePlan } from './schedule/schedule.js';

/** Partitions, where their state lives, and when it is updated. */
export interface Share {
  readonly partitions: readonly Partition[];
  readonly home: Home;
  readonly schedule: Schedule;
}

/**
 * Sends each partition to its share. Shares update at the same time, and what
 * they do is enqueued in forward order. Exact: every home and every schedule gives the same bits.
 * Homes and schedules belong to whoever made them.
 */
export class OptimizerState {
  readonly shares: Share[] = [];
  private readonly shareOf = new Map<Partition, Share>();
  private readonly inForwardOrder: Partition[] = [];

  /** More partitions, none of which it has yet. */
  add(share: Share): void {
    this.shares.push(share);
    for (const partition of share.partitions) this.shareOf.set(partition, share);
  }

  /** Allocates the master weights and the state of a partition; they come in forward order. */
  adopt(partition: Partition): void {
    const { home, schedule } = this.of(partition);
    this.inForwardOrder.push(partition);
    home.adopt(partition);
    schedule.adopt(partition);
  }

  /**
   * Sets the master weights of a piece: [numel] f32 on the device. Reads `values` on the compute
   * stream.
   */
  writeMaster(partition: Partition, piece: Piece, values: Tensor): void {
    this.of(partition).home.writeMaster(partition, piece, values);
  }

  /** The backward that completes the gradients of `plan` is about to start. */
  prepare(plan: UpdatePlan): void {
    for (const { schedule } of this.shares) schedule.prepare(plan);
  }

  /** The gradient of `partition` is complete once partition.ready has been passed. */
  gradReady(partition: Partition): void {
    this.of(partition).schedule.gradReady(partition);
  }

  /**
   * Updates every partition in forward order, whatever share it is of, and tells `publisher` of
   * each when its new weights have been enqueued. `control` is on the device, written on the
   * compute stream. A share may wait for the step decision: what others need not wait for comes
   * first.
   */
  update(control: Tensor, plan: UpdatePlan, publisher: Publisher): void {
    for (const { schedule } of this.shares) schedule.endBackward();
    for (const partition of this.inForwardOrder) this.of(partition).schedule.begin(partition);
    const updates = new Map(
      this.shares.map(({ home, schedule }) => [home, schedule.update(control, plan)] as const),
    );
    for (const partition of this.inForwardOrder) {
      const next = updates.get(this.of(partition).home)?.next();
      if (next && !next.done) publisher.publish(...next.value);
    }
    for (const rest of updates.values()) for (const one of rest) publisher.publish(...one);
  }

  /**
   * Called before weights are read: later compute work sees the updated ones. No update changes a
   * frozen part.
   */
  awaitWeights(part: WeightPart): void {
    const partition = part as Partition;
    this.shareOf.get(partition)?.schedule.awaitWeights(partition);
  }

  /**
   * The master weights (name "master") or the state called `name` of a piece, as the last update
   * leaves them. What is written there counts from the next update on, once keep() of what was lent
   * and then changed() say so.
   */
  lend(partition: Partition, piece: Piece, name: string): LentState {
    const { home, schedule } = this.of(partition);
    schedule.commit();
    return home.lend(partition, piece, name);
  }

  /** Whether what is lent of a partition is a copy, which takes memory while it is. */
  lendsCopies(partition: Partition): boolean {
    return this.of(partition).home.lendsCopies;
  }

  /**
   * The partition's gradient, from gradReady() to update(): [numel] in the unit's gradDtype, where
   * it is kept; null where there is none. Complete when this returns; the caller releases it.
   */
  gradOf(partition: Partition): Tensor | null {
    return this.of(partition).schedule.gradOf(partition);
  }

  /** Gradient or state of the partition were changed from outside. */
  changed(partition: Partition): void {
    this.of(partition).schedule.changed();
  }

  /**
   * After master weights were changed from outside (a loaded checkpoint): refreshes the partition's
   * weights.
   */
  refresh(partition: Partition): void {
    const { home, schedule } = this.of(partition);
    schedule.changed();
    home.refresh(partition);
  }

  /**
   * Whether ranks may have updated by themselves since their weights were the same. The same on
   * every rank.
   */
  get isAdrift(): boolean {
    return this.shares.some(({ schedule }) => schedule.isAdrift);
  }

  /** Gives all ranks the same weights again, after `applied` updates; they all call it. */
  resync(applied: number, publisher: Publisher): void {
    for (const { schedule } of this.shares) schedule.resync(applied, publisher);
  }

  /**
   * What this rank has rounded away of what ranks exchange; whoever gets the tensors releases them.
   */
  rankErrors(): RankError[] {
    return this.shares.flatMap(({ schedule }) => [...schedule.rankErrors()]);
  }

  /** Waits until every update has reached the weights. */
  synchronize(): void {
    for (const { home, schedule } of this.shares) {
      schedule.commit();
      home.synchronize();
    }
  }

  /** Bytes of state, by where they are. */
  get bytes(): Bytes {
    const sum = { device: 0, host: 0, disk: 0 };
    for (const { home, schedule } of this.shares) {
      const { device, host, disk } = home.bytes;
      sum.device += device + schedule.deviceBytes;
      sum.host += host + schedule.bytes;
      sum.disk += disk;
    }
    return sum;
  }

  private of(partition: Partition): Share {
    return this.shareOf.get(partition) as Share;
  }
}

/**
 * Partitions with about `share` of all elements, spread evenly over the forward: two processors
 * that update one set each, at rates in that proportion, get along with it alike. The first one is
 * among them where it is no more than the share: its gradient comes last, its weights are needed
 * first, and the other processor goes on with those that follow.
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
 * The partitions whose state stays on the device where the rest is offloaded: the first ones in
 * forward order, as many as fit into `share` of all elements. Their gradients are complete last and
 * their weights are needed first, so that an update on the host would have nothing to hide behind.
 * Source: DeepSpeed's offload_optimizer.ratio (ZeRO-Offload++, "Twin-Flow").
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
