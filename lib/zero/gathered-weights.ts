// Weights that every rank holds a shard of: gathered in place when a unit is used, fetched ahead,
// let go after.
import type { Device } from '../runtime/device.js';
import { Event, Stream } from '../runtime/stream.js';
import { held, Tensor } from '../tensor/index.js';
import type { At, Collectives, Work } from './collectives.js';
import type { CommTimer } from './exchange.js';
import { sliceFlat } from './flat.js';
import { pinned } from './home/pinned.js';
import { InMemory, type WeightPlace } from './home/weight-place.js';
import { type Range, shardOf } from './layout.js';
import type { NearCopies } from './near-copies.js';
import { Partition, WeightPart } from './partition.js';
import type { Unit } from './unit.js';
import { UnitTrace } from './unit-trace.js';
import type { WeightFlow } from './weight-flow.js';
import type { WeightUnit } from './weight-unit.js';

/** Limits in elements. Source: DeepSpeed's stage3_* settings. */
export interface GatherOptions {
  /** Elements that are fetched ahead at least, in whole units (stage3_prefetch_bucket_size). */
  prefetch: number;
  /** Held at a time, those in use aside (stage3_max_live_parameters). */
  maxLive: number;
  /**
   * A unit that is used again within so many elements is not let go (stage3_max_reuse_distance).
   */
  maxReuseDistance: number;
  /**
   * Smaller units are never let go (stage3_param_persistence_threshold), as long as all of them
   * together ...
   */
  persistenceThreshold: number;
  /** ... have no more elements than this (stage3_model_persistence_threshold). */
  modelPersistenceThreshold: number;
  /** What foresees which units come next. Default: one that learns it from a step's updates. */
  trace?: UnitTrace;
  /** Where the shards live. */
  home: ShardHome;
  /** How a unit comes from all ranks' shards. */
  gather: GatherUnit;
  /** Where what is gathered again before the next update comes from; null for the shards. */
  near: NearCopies | null;
  /** Gathers run on a stream of their own. */
  overlap: boolean;
  timer: CommTimer;
}

/** One unit's gathered weights. */
interface Gathered {
  /** [numel] of the unit. */
  flat: Tensor;
  /** The gather, until the compute stream waits for it. */
  work: Work | null;
  /** The parameters are views of `flat`. */
  isPlaced: boolean;
}

/**
 * One all-gather per unit, from the shard straight into the unit's flat weights. No host wait:
 * memory comes and goes in the order of the compute stream, gathers are ordered by events.
 */
export class GatheredWeights implements WeightFlow {
  readonly isSharded = true;
  private readonly gathered = new Map<WeightUnit, Gathered>();
  private readonly parts = new Map<WeightUnit, WeightPart>();
  private readonly persistent = new Set<WeightUnit>();
  /** When an update of the shard is complete: what publish() was told, or events of its own. */
  private readonly updated = new Map<WeightUnit, Event>();
  private readonly own = new Map<WeightUnit, Event>();
  private readonly trace: UnitTrace;
  private readonly stream: Stream;
  private readonly computed: Event;
  private live = 0;

  constructor(
    private readonly device: Device,
    private readonly group: Collectives,
    private readonly options: GatherOptions,
  ) {
    this.trace = options.trace ?? new UnitTrace();
    this.stream = options.overlap
      ? Stream.create(device, 'gathers of weights', 'awaited')
      : device.compute;
    this.computed = new Event(device);
  }

  partitionOf(unit: Unit): Partition {
    return new Partition(unit, ...this.ownShard(unit));
  }

  partOf(unit: WeightUnit): WeightPart {
    return new WeightPart(unit, ...this.ownShard(unit));
  }

  adopting(unit: WeightUnit): void {
    unit.allocate();
  }

  /** Takes over a unit whose full weights are there: keeps the shard, lets the rest go. */
  adopted(part: WeightPart): void {
    const { unit, range, place } = part;
    this.parts.set(unit, part);
    const { compute } = this.device;
    const own = sliceFlat(unit.weights, range);
    compute.wait(this.computed.record(place.store(own, compute)));
    own.release();
    unit.vacate();
    if (this.persists(unit)) this.persistent.add(unit);
  }

  /** Later compute work sees the unit's weights; what is likely to be used next is fetched. */
  acquire(unit: WeightUnit): void {
    this.trace.visit(unit);
    const weights = this.gathered.get(unit) ?? this.gather(unit);
    const { work } = weights;
    const { compute } = this.device;
    if (work) {
      const end = this.options.timer.stall(compute);
      work.wait(compute);
      end();
      this.options.near?.keep(unit, weights.flat);
    }
    weights.work = null;
    if (!weights.isPlaced) unit.materialize(weights.flat);
    weights.isPlaced = true;
    this.fetchAhead();
    this.options.home.expect(this.notGathered());
  }

  /** The unit's weights are not read until the next acquire(). */
  release(unit: WeightUnit): void {
    if (!this.gathered.has(unit) || this.persistent.has(unit)) return;
    const { maxReuseDistance, maxLive } = this.options;
    if (this.live <= maxLive && this.trace.reuseDistance(unit) <= maxReuseDistance) return;
    this.drop(unit);
  }

  /** Later compute work comes after every gather so far: no shard is being read. */
  endBackward(): void {
    for (const weights of this.gathered.values()) {
      weights.work?.wait(this.device.compute);
      weights.work = null;
    }
  }

  /** The shard changes in the order of `stream`: gathered weights are stale. */
  publish({ unit }: WeightPart, stream: Stream, changed?: Event): void {
    this.trace.restart();
    this.updated.set(unit, changed ?? this.eventOf(unit).record(stream));
    this.drop(unit);
    this.options.near?.forget(unit);
  }

  /** Stale weights are gathered where they are used. */
  dispatch(): void {
    this.options.home.expect(this.trace.beginning());
  }

  dispose(): void {
    for (const unit of [...this.gathered.keys()]) this.drop(unit);
    this.stream.synchronize();
    this.options.near?.dispose();
    if (this.options.overlap) this.stream.dispose();
    for (const event of [this.computed, ...this.own.values()]) event.dispose();
    this.options.home.dispose();
  }

  /** Where this rank's shard lies in the unit, and where it is kept, contents undefined. */
  private ownShard(unit: WeightUnit): [range: Range, place: WeightPlace] {
    const range = shardOf(unit.layout.numel, this.group.rank, this.group.size);
    return [range, this.options.home.place(unit, range.numel)];
  }

  /** The units used next that are not on their way here. */
  private *notGathered(): Generator<WeightUnit> {
    for (const unit of this.trace.upcoming()) if (!this.gathered.has(unit)) yield unit;
  }

  private eventOf(unit: WeightUnit): Event {
    const event = this.own.get(unit) ?? new Event(this.device);
    this.own.set(unit, event);
    return event;
  }

  private persists(unit: WeightUnit): boolean {
    const { persistenceThreshold, modelPersistenceThreshold } = this.options;
    const { numel } = unit.layout;
    let total = numel;
    for (const other of this.persistent) total += other.layout.numel;
    return numel <= persistenceThreshold && total <= modelPersistenceThreshold;
  }

  private gather(unit: WeightUnit): Gathered {
    const { place } = this.parts.get(unit) as WeightPart;
    const { numel } = unit.layout;
    const flat = held(() => Tensor.empty([numel], unit.dtype, this.device));
    // The memory may still be in use by compute work enqueued before.
    this.stream.wait(this.computed.record(this.device.compute));
    const updated = this.updated.get(unit);
    if (updated) this.stream.wait(updated);
    const at = { stream: this.stream, purpose: `weights of ${unit.name}` };
    const end = this.options.timer.collective(this.stream);
    const { near, gather } = this.options;
    const work = near?.gather(unit, flat, at) ?? gather(place, flat, this.group, at);
    end();
    // These are the weights of before, in other memory: publish() says when they change.
    flat.changedAt = 0;
    const gathered = { flat, work, isPlaced: false };
    this.gathered.set(unit, gathered);
    this.live += numel;
    return gathered;
  }

  /**
   * Whole units until so many elements are ahead, as in DeepSpeed: one that is larger comes too.
   */
  private fetchAhead(): void {
    const { prefetch, maxLive } = this.options;
    let ahead = 0;
    for (const unit of this.trace.upcoming()) {
      const { numel } = unit.layout;
      if (ahead >= prefetch) return;
      ahead += numel;
      if (this.gathered.has(unit)) continue;
      if (this.live + numel > maxLive) return;
      this.gather(unit);
    }
  }

  private drop(unit: WeightUnit): void {
    const weights = this.gathered.get(unit);
    if (!weights) return;
    weights.work?.wait(this.device.compute);
    this.gathered.delete(unit);
    this.live -= unit.layout.numel;
    if (weights.isPlaced) unit.vacate();
    else weights.flat.release();
  }
}

/** Fills `flat` [size * n] on the device from every rank's place of n. */
export type GatherUnit = (place: WeightPlace, flat: Tensor, group: Collectives, at: At) => Work;

/** Where shards live. */
export interface ShardHome {
  /**
   * A place for a unit's shard of `numel` elements, contents undefined; the caller disposes of it.
   */
  place(unit: WeightUnit, numel: number): WeightPlace;
  /** These units are gathered next, in this order. */
  expect(units: Iterable<WeightUnit>): void;
  /** All places are no longer used. */
  dispose(): void;
}

const alwaysThere = { expect() {}, dispose() {} };

/** In device memory. */
export const onDevice: ShardHome = {
  ...alwaysThere,
  place: ({ dtype, device }, numel) =>
    new InMemory(held(() => Tensor.empty([numel], dtype, device))),
};

/** In pinned host memory (offload_param). Source: ZeRO-Infinity. */
export const onHost: ShardHome = {
  ...alwaysThere,
  place: ({ dtype, device }, numel) => new InMemory(pinned(device, [numel], dtype)),
};

/**
 * A shard on the device by one all-gather; one that is elsewhere is uploaded to where it belongs,
 * and gathered there.
 */
export const gatherPlain: GatherUnit = (place, flat, group, at) => {
  const { memory } = place;
  if (memory && !memory.buffer.pinned) return group.allGather(flat, memory, at);
  const numel = flat.numel / group.size;
  const own = sliceFlat(flat, { offset: group.rank * numel, numel });
  place.load(own, at.stream);
  const work = group.allGather(flat, own, at);
  own.release();
  return work;
};
