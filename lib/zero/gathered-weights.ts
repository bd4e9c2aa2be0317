// Stage 3: gathers the weights of a unit before a module uses them, and frees them afterwards.

import type { Device } from '../runtime/device.js';
import { required } from '../runtime/required.js';
import { Event, Stream } from '../runtime/stream.js';
import { copyFlat, sliceFlat } from '../tensor/flat.js';
import { held, Tensor } from '../tensor/index.js';
import type { CommTimer } from './gradients.js';
import { shardOf } from './layout.js';
import { MemoryStore, type WeightShard, type WeightStore } from './partition.js';
import type { OwnedShard, WeightFlow } from './stage.js';
import { allocatePinned } from './state/memory.js';
import type { WeightUnit } from './unit.js';
import type { CollectiveStart, Collectives, Work } from './wire.js';

/** Limits count elements. Source: DeepSpeed's stage3_* settings. */
interface GatherOptions {
  /** Number of elements to prefetch. Rounded up to whole units (stage3_prefetch_bucket_size). */
  prefetchElements: number;
  /**
   * Maximum number of gathered elements (stage3_max_live_parameters). Units in use may exceed it.
   */
  maxLive: number;
  /**
   * A unit stays gathered if at most this many elements precede its next use
   * (stage3_max_reuse_distance).
   */
  maxReuseDistance: number;
  /** Units of at most this size stay gathered (stage3_param_persistence_threshold), ... */
  persistenceThreshold: number;
  /**
   * ... while all persistent units have at most this many elements
   * (stage3_model_persistence_threshold).
   */
  modelPersistenceThreshold: number;
  trace: UnitTrace;
  storage: ShardStorage;
  gather: GatherUnit;
  /**
   * Copies of shards within a node, for repeated gathers before the next update (hpZ); null without
   * hpZ.
   */
  secondaryShards: SecondaryShards | null;
  /** Run gathers on a separate stream. */
  overlap: boolean;
  timer: CommTimer;
}

interface Gathered {
  /** [numel] of the unit. */
  flat: Tensor;
  /** The running gather. Null as soon as the compute stream waits for it. */
  work: Work | null;
  hasViews: boolean;
}

/**
 * The weight flow of stage 3. One all-gather per unit fills the unit's flat weights from the shards
 * of all ranks. The host never waits: the pool allocates and frees memory in the order of compute,
 * and events order the gathers.
 */
export class GatheredWeights implements WeightFlow {
  readonly isSharded = true;
  private readonly gathered = new Map<WeightUnit, Gathered>();
  private readonly shards = new Map<WeightUnit, WeightShard>();
  private readonly persistent = new Set<WeightUnit>();
  /**
   * By unit: the event after the last update of its shard. The caller of publish() owns it, or
   * `ownEvents`.
   */
  private readonly updated = new Map<WeightUnit, Event>();
  private readonly ownEvents = new Map<WeightUnit, Event>();
  private readonly trace: UnitTrace;
  private readonly stream: Stream;
  private readonly computed: Event;
  private liveElements = 0;

  constructor(
    private readonly device: Device,
    private readonly group: Collectives,
    private readonly options: GatherOptions,
  ) {
    this.trace = options.trace;
    this.stream = options.overlap
      ? Stream.create(device, 'gathers of weights', 'awaited')
      : device.compute;
    this.computed = new Event(device);
  }

  get slotBytes(): number {
    return this.options.storage.slotBytes;
  }

  keep(unit: WeightUnit): OwnedShard {
    const range = shardOf(unit.layout.numel, this.group.rank, this.group.size);
    return [range, this.options.storage.create(unit, range.numel)];
  }

  prepareUnit(unit: WeightUnit): void {
    unit.allocate();
  }

  /** Stores this rank's shard of the unit's initial weights, and frees the unit's full weights. */
  adoptShard(shard: WeightShard): void {
    const { unit, range, storage } = shard;
    this.shards.set(unit, shard);
    const { compute } = this.device;
    const ownShard = sliceFlat(unit.weights, range);
    compute.wait(this.computed.record(storage.store(ownShard, compute)));
    ownShard.release();
    unit.vacate();
    if (this.isPersistent(unit)) this.persistent.add(unit);
  }

  /** Makes later compute work wait for the unit's weights, then prefetches the next units. */
  acquire(unit: WeightUnit): void {
    this.trace.visit(unit);
    const weights = this.gathered.get(unit) ?? this.gather(unit);
    const { work } = weights;
    const { compute } = this.device;
    if (work) {
      const end = this.options.timer.beginStall(compute);
      work.wait(compute);
      end();
      this.options.secondaryShards?.keep(unit, weights.flat);
    }
    weights.work = null;
    if (!weights.hasViews) unit.materialize(weights.flat);
    weights.hasViews = true;
    this.prefetch();
    this.options.storage.expect(this.missingUnits());
  }

  /**
   * Called after the last read of the unit's weights before its next acquire(). Frees them unless
   * they are reused soon.
   */
  release(unit: WeightUnit): void {
    if (!this.gathered.has(unit) || this.persistent.has(unit)) return;
    const { maxReuseDistance, maxLive } = this.options;
    if (this.liveElements <= maxLive && this.trace.reuseDistance(unit) <= maxReuseDistance) return;
    this.drop(unit);
  }

  /** Makes later compute work wait for all running gathers. Updates may then change the shards. */
  endBackward(): void {
    for (const weights of this.gathered.values()) {
      weights.work?.wait(this.device.compute);
      weights.work = null;
    }
  }

  /**
   * Called when an update changes the shard in the order of `stream`. Drops the gathered old
   * weights.
   */
  publish({ unit }: WeightShard, stream: Stream, changed?: Event): void {
    this.trace.restart();
    this.updated.set(unit, changed ?? this.eventOf(unit).record(stream));
    this.drop(unit);
    this.options.secondaryShards?.forget(unit);
  }

  /**
   * Announces the first units of the next step to the storage. No gather starts before a unit is
   * used.
   */
  dispatch(): void {
    this.options.storage.expect(this.trace.firstUnits());
  }

  vacate(): void {
    for (const unit of [...this.gathered.keys()]) this.drop(unit);
    this.stream.synchronize();
    this.options.secondaryShards?.dispose();
  }

  dispose(): void {
    this.vacate();
    if (this.options.overlap) this.stream.dispose();
    for (const event of [this.computed, ...this.ownEvents.values()]) event.dispose();
    this.options.storage.dispose();
  }

  /** Yields the next units that are not gathered, in the order of use. */
  private *missingUnits(): Generator<WeightUnit> {
    for (const unit of this.trace.nextUnits()) if (!this.gathered.has(unit)) yield unit;
  }

  private eventOf(unit: WeightUnit): Event {
    const event = this.ownEvents.get(unit) ?? new Event(this.device);
    this.ownEvents.set(unit, event);
    return event;
  }

  private isPersistent(unit: WeightUnit): boolean {
    const { persistenceThreshold, modelPersistenceThreshold } = this.options;
    const { numel } = unit.layout;
    let total = numel;
    for (const other of this.persistent) total += other.layout.numel;
    return numel <= persistenceThreshold && total <= modelPersistenceThreshold;
  }

  private gather(unit: WeightUnit): Gathered {
    const { storage } = required(this.shards.get(unit));
    const { numel } = unit.layout;
    const flat = held(() => Tensor.empty([numel], unit.dtype, this.device));
    // The memory is allocated in the order of compute, so earlier compute work may still use it.
    this.stream.wait(this.computed.record(this.device.compute));
    const updated = this.updated.get(unit);
    if (updated) this.stream.wait(updated);
    const at = { stream: this.stream, purpose: `weights of ${unit.name}` };
    const end = this.options.timer.beginCollective(this.stream);
    const { secondaryShards, gather } = this.options;
    const work =
      secondaryShards?.gather(unit, flat, at) ?? gather(storage, flat, this.group, at, unit);
    end();
    // A gather restores known values, so it is no change for the tape. publish() marks real
    // changes.
    flat.changedAt = 0;
    const gathered = { flat, work, hasViews: false };
    this.gathered.set(unit, gathered);
    this.liveElements += numel;
    return gathered;
  }

  /**
   * Gathers the predicted next units up to the limits. As in DeepSpeed, the last unit may exceed
   * prefetchElements.
   */
  private prefetch(): void {
    const { prefetchElements, maxLive } = this.options;
    let ahead = 0;
    for (const unit of this.trace.nextUnits()) {
      const { numel } = unit.layout;
      if (ahead >= prefetchElements) return;
      ahead += numel;
      if (this.gathered.has(unit)) continue;
      if (this.liveElements + numel > maxLive) return;
      this.gather(unit);
    }
  }

  private drop(unit: WeightUnit): void {
    const weights = this.gathered.get(unit);
    if (!weights) return;
    weights.work?.wait(this.device.compute);
    this.gathered.delete(unit);
    this.liveElements -= unit.layout.numel;
    if (weights.hasViews) unit.vacate();
    else weights.flat.release();
  }
}

/**
 * Starts a gather that fills `flat` [size * n] on the device from the shard of n elements of every
 * rank.
 */
export type GatherFlat = (
  store: WeightStore,
  flat: Tensor,
  group: Collectives,
  at: CollectiveStart,
) => Work;
/** A GatherFlat that also receives the unit. */
export type GatherUnit = (...args: [...Parameters<GatherFlat>, unit: WeightUnit]) => Work;

export interface ShardStorage {
  /** See ZeroStages.slotBytes. */
  readonly slotBytes: number;
  /** Returns uninitialized storage for a shard of `numel` elements. The caller disposes it. */
  create(unit: WeightUnit, numel: number): WeightStore;
  /** Announces the next units to gather, in order. */
  expect(units: Iterable<WeightUnit>): void;
  dispose(): void;
}

const inMemory = { slotBytes: 0, expect() {}, dispose() {} };

/** Storage of shards in device memory. */
export const onDevice: ShardStorage = {
  ...inMemory,
  create: ({ dtype, device }, numel) =>
    new MemoryStore(held(() => Tensor.empty([numel], dtype, device))),
};

/** Storage of shards in pinned host memory (offload_param). Source: ZeRO-Infinity. */
export const onHost: ShardStorage = {
  ...inMemory,
  create: ({ dtype, device }, numel) => new MemoryStore(allocatePinned(device, [numel], dtype)),
};

/**
 * Gathers a shard in device memory directly. A shard in host memory or on a disk is first copied to
 * its range of `flat`.
 */
export const gatherPlain: GatherFlat = (store, flat, group, at) => {
  const { memory } = store;
  if (memory && !memory.buffer.pinned) return group.allGather(flat, memory, at);
  const numel = flat.numel / group.size;
  const ownShard = sliceFlat(flat, { offset: group.rank * numel, numel });
  store.load(ownShard, at.stream);
  const work = group.allGather(flat, ownShard, at);
  ownShard.release();
  return work;
};

/**
 * Shards of the secondary copy (hpZ). A copy lives from the first gather after an update to the
 * next update.
 */
export class SecondaryShards {
  private readonly shards = new Map<WeightUnit, Tensor>();

  constructor(private readonly group: Collectives) {}

  /** Fills `flat` [numel] from the copy. Returns null if there is no copy of these weights yet. */
  gather(unit: WeightUnit, flat: Tensor, at: CollectiveStart): Work | null {
    const shard = this.shards.get(unit);
    return shard ? this.group.allGather(flat, shard, at) : null;
  }

  /**
   * Stores this rank's range of `flat` [numel] in the order of the compute stream, unless a copy
   * exists.
   */
  keep(unit: WeightUnit, flat: Tensor): void {
    if (this.shards.has(unit)) return;
    const part = shardOf(flat.numel, this.group.rank, this.group.size);
    const { numel } = part;
    const shard = held(() => Tensor.empty([numel], flat.dtype, flat.device));
    copyFlat(shard, { offset: 0, numel }, flat, part, flat.device.compute);
    this.shards.set(unit, shard);
  }

  /**
   * Drops the copy when the unit's weights change. The caller ensures that no gather reads the
   * copy.
   */
  forget(unit: WeightUnit): void {
    this.shards.get(unit)?.release();
    this.shards.delete(unit);
  }

  dispose(): void {
    for (const unit of [...this.shards.keys()]) this.forget(unit);
  }
}

/** Maximum uses in a trace. Without updates, as in evaluation, a trace would grow without end. */
const MAX_USES = 10_000;

/**
 * Records the order of units in a step. The next step is expected to use the same order, so the
 * trace can predict prefetches and reuse. If the order changes, the trace predicts nothing until it
 * finds its position in the last order again.
 */
export class UnitTrace {
  private last: WeightUnit[] = [];
  private current: WeightUnit[] = [];
  /** Index in `last` of the unit in use; null if the order has changed. */
  private position: number | null = null;
  /** The last valid `position` in this step; -1 before the first unit. */
  private lastKnown = -1;

  /**
   * With `onlyForwards`, forwards follow each other without updates. A unit that the trace has
   * already recorded then begins the next forward.
   */
  constructor(private readonly onlyForwards = false) {}

  /** Records the use of a unit. Repeated uses in a row count once. */
  visit(unit: WeightUnit): void {
    if (this.current.at(-1) === unit) return;
    const isNext = this.onlyForwards && this.current.includes(unit);
    if (isNext || this.current.length === MAX_USES) this.restart();
    this.current.push(unit);
    const index = this.last.indexOf(unit, this.lastKnown + 1);
    this.position = index < 0 ? null : index;
    this.lastKnown = this.position ?? this.lastKnown;
  }

  /** Ends a step. The next step is expected to repeat it. */
  restart(): void {
    if (this.current.length === 0) return;
    this.last = this.current;
    this.current = [];
    this.position = null;
    this.lastKnown = -1;
  }

  /**
   * Returns the units that are expected after the present one, in order. With `onlyForwards`, they
   * include the units of the next forward.
   */
  nextUnits(): readonly WeightUnit[] {
    if (this.position === null) return [];
    const next = this.position + 1;
    const remaining = this.last.slice(next);
    return this.onlyForwards ? [...remaining, ...this.last.slice(0, next)] : remaining;
  }

  /** Returns the units of the next step in order. Returns an empty list during a step. */
  firstUnits(): readonly WeightUnit[] {
    return this.current.length === 0 ? this.last : [];
  }

  /**
   * Returns the number of elements of other units before the next use of `unit`; infinity if
   * unknown.
   */
  reuseDistance(unit: WeightUnit): number {
    let distance = 0;
    for (const next of this.nextUnits()) {
      if (next === unit) return distance;
      distance += next.layout.numel;
    }
    return Number.POSITIVE_INFINITY;
  }
}
