// The weight flow of stage 3: gathers a unit before its use, and frees it afterwards.

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
import type { CollectivePlace, Collectives, Work } from './wire.js';

/** Limits in elements. Source: DeepSpeed's stage3_* settings. */
interface GatherOptions {
  /** Minimum number of prefetched elements, in whole units (stage3_prefetch_bucket_size). */
  prefetchElements: number;
  /** Maximum number of gathered elements, without units in use (stage3_max_live_parameters). */
  maxLive: number;
  /** A unit that is reused within this many elements stays gathered (stage3_max_reuse_distance). */
  maxReuseDistance: number;
  /** Units up to this size stay gathered (stage3_param_persistence_threshold), ... */
  persistenceThreshold: number;
  /** ... if all of them have at most this many elements (stage3_model_persistence_threshold). */
  modelPersistenceThreshold: number;
  trace: UnitTrace;
  storage: ShardStorage;
  gather: GatherUnit;
  /** Secondary copies for repeated gathers before the next update (hpZ); null without them. */
  secondaryShards: SecondaryShards | null;
  /** Run gathers on a separate stream. */
  overlap: boolean;
  timer: CommTimer;
}

interface Gathered {
  /** [numel] of the unit. */
  flat: Tensor;
  /** The running gather, until the compute stream waits for it. */
  work: Work | null;
  hasViews: boolean;
}

/**
 * Runs one all-gather per unit, from the shard into the unit's flat weights. The host never waits:
 * memory is allocated and freed in the order of compute, and events order the gathers.
 */
export class GatheredWeights implements WeightFlow {
  readonly isSharded = true;
  private readonly gathered = new Map<WeightUnit, Gathered>();
  private readonly shards = new Map<WeightUnit, WeightShard>();
  private readonly persistent = new Set<WeightUnit>();
  /** The event that ends the update of each shard, from publish() or from `ownEvents`. */
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

  /** Stores this rank's shard of a unit with full weights, and frees the rest. */
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

  /** Makes later compute work see the unit's weights, and prefetches the next units. */
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

  /** Allows freeing the unit's weights; they are not read until the next acquire(). */
  release(unit: WeightUnit): void {
    if (!this.gathered.has(unit) || this.persistent.has(unit)) return;
    const { maxReuseDistance, maxLive } = this.options;
    if (this.liveElements <= maxLive && this.trace.reuseDistance(unit) <= maxReuseDistance) return;
    this.drop(unit);
  }

  /** Later compute work waits for all gathers, so that no gather reads a shard any more. */
  endBackward(): void {
    for (const weights of this.gathered.values()) {
      weights.work?.wait(this.device.compute);
      weights.work = null;
    }
  }

  /** Drops gathered weights, because the shard changes in the order of `stream`. */
  publish({ unit }: WeightShard, stream: Stream, changed?: Event): void {
    this.trace.restart();
    this.updated.set(unit, changed ?? this.eventOf(unit).record(stream));
    this.drop(unit);
    this.options.secondaryShards?.forget(unit);
  }

  /** Does nothing: the next use gathers again. */
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
    // Earlier compute work may still use the memory.
    this.stream.wait(this.computed.record(this.device.compute));
    const updated = this.updated.get(unit);
    if (updated) this.stream.wait(updated);
    const at = { stream: this.stream, purpose: `weights of ${unit.name}` };
    const end = this.options.timer.beginCollective(this.stream);
    const { secondaryShards, gather } = this.options;
    const work =
      secondaryShards?.gather(unit, flat, at) ?? gather(storage, flat, this.group, at, unit);
    end();
    // Same values in other memory. publish() marks real changes.
    flat.changedAt = 0;
    const gathered = { flat, work, hasViews: false };
    this.gathered.set(unit, gathered);
    this.liveElements += numel;
    return gathered;
  }

  /** Prefetches whole units up to the limit, as DeepSpeed does; the last one may exceed it. */
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

/** Fills `flat` [size * n] on the device from every rank's shard of n elements. */
export type GatherFlat = (
  store: WeightStore,
  flat: Tensor,
  group: Collectives,
  at: CollectivePlace,
) => Work;
/** A GatherFlat that may depend on the unit. */
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

/** Gathers a device shard directly. A shard elsewhere is first copied to its part of `flat`. */
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

/** Shards of the secondary copy, from the first gather after an update to the next update. */
export class SecondaryShards {
  private readonly shards = new Map<WeightUnit, Tensor>();

  constructor(private readonly group: Collectives) {}

  /** Fills `flat` [numel] from the copy. Returns null if there is no copy of these weights yet. */
  gather(unit: WeightUnit, flat: Tensor, at: CollectivePlace): Work | null {
    const shard = this.shards.get(unit);
    return shard ? this.group.allGather(flat, shard, at) : null;
  }

  /** Stores this rank's part of `flat` [numel], in the order of the compute stream. */
  keep(unit: WeightUnit, flat: Tensor): void {
    if (this.shards.has(unit)) return;
    const part = shardOf(flat.numel, this.group.rank, this.group.size);
    const { numel } = part;
    const shard = held(() => Tensor.empty([numel], flat.dtype, flat.device));
    copyFlat(shard, { offset: 0, numel }, flat, part, flat.device.compute);
    this.shards.set(unit, shard);
  }

  /** Drops the copy, because the unit's weights change. No gather of the copy is running. */
  forget(unit: WeightUnit): void {
    this.shards.get(unit)?.release();
    this.shards.delete(unit);
  }

  dispose(): void {
    for (const unit of [...this.shards.keys()]) this.forget(unit);
  }
}

/** Maximum uses in a trace without an update. Evaluation has no updates. */
const MAX_USES = 10_000;

/**
 * The order of units in the last step, to prefetch units and to predict reuse. Adapts if the order
 * changes. Until it finds its position again, it predicts nothing.
 */
export class UnitTrace {
  private last: WeightUnit[] = [];
  private current: WeightUnit[] = [];
  /** Index in `last` of the present unit; null if the order is unknown. */
  private position: number | null = null;
  /** The last known index in this step; -1 before any. */
  private lastKnown = -1;

  /**
   * `onlyForwards`: without updates, forwards follow each other. A repeated unit begins the next
   * forward, which is expected to repeat the last one.
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

  /** Returns the known next units, in order: of this step, or also of the next forward. */
  nextUnits(): readonly WeightUnit[] {
    if (this.position === null) return [];
    const next = this.position + 1;
    const remaining = this.last.slice(next);
    return this.onlyForwards ? [...remaining, ...this.last.slice(0, next)] : remaining;
  }

  /** Between steps: returns the units that the next step is expected to use, in order. */
  firstUnits(): readonly WeightUnit[] {
    return this.current.length === 0 ? this.last : [];
  }

  /** Returns the elements of other units before the next use of `unit`; infinite if unknown. */
  reuseDistance(unit: WeightUnit): number {
    let distance = 0;
    for (const next of this.nextUnits()) {
      if (next === unit) return distance;
      distance += next.layout.numel;
    }
    return Number.POSITIVE_INFINITY;
  }
}
