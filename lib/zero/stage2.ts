// Stages 1 and 2: each rank receives the gradients of its shards, updates them, and sends the
// weights. Partial gradients of tensor-parallel ranks are summed before that.
import type { Device } from '../runtime/device.js';
import * as kernels from '../runtime/kernels.generated.js';
import { required } from '../runtime/required.js';
import { Event, Stream } from '../runtime/stream.js';
import { copyFlat, sliceFlat } from '../tensor/flat.js';
import { held, Tensor } from '../tensor/index.js';
import { type BucketOptions, Buckets } from './bucket.js';
import { type LayoutEntry, type Range, shardOf } from './layout.js';
import { MemoryStore, type WeightShard } from './shard.js';
import type { GradientFlow, GradientRoute, OwnedShard, WeightFlow } from './stage.js';
import type { Unit, WeightUnit } from './unit.js';
import type { Collectives, Work } from './wire.js';

/** Stage 1: each rank receives the sum of its shard over ranks. */
export const ownedGradients = (route: GradientRoute): GradientFlow => ({
  route,
  factor: route.factor,
  takesEach: false,
  reduce(partition, receiver) {
    const { unit, range } = partition;
    const full = unit.gradient.take();
    const shard = sliceFlat(full, range);
    const purpose = `gradient of ${unit.name}`;
    route.buckets.add({
      numel: full.numel,
      start: (stream) => route.wire.reduceScatter(shard, full, { stream, purpose }),
      complete: (stream) => {
        full.release();
        partition.grad = shard;
        receiver?.receiveReduced(partition, stream);
      },
    });
  },
});

/** Stages 2 and 3: shards of micro-batches add up in `partition.grad`. */
export const shardedGradients = (route: GradientRoute): GradientFlow => ({
  route,
  factor: route.factor,
  takesEach: true,
  reduce(partition, receiver) {
    const { unit, numel } = partition;
    const full = unit.gradient.take();
    unit.gradient.drop();
    const shard = held(() => Tensor.empty([numel], full.dtype, unit.device));
    let isSummed = false;
    const purpose = `gradient of ${unit.name}`;
    route.buckets.add({
      numel: full.numel,
      start: (stream) => route.wire.reduceScatter(shard, full, { stream, purpose }),
      complete: (stream) => {
        isSummed = partition.grad !== null;
        if (partition.grad) addTo(partition.grad, shard, stream);
        else partition.grad = shard;
        receiver?.receiveReduced(partition, stream);
      },
      free: () => {
        full.release();
        if (isSummed) shard.release();
      },
    });
  },
});

/** Adds `addend` to `sumEntries` in the order of `stream`. */
function addTo(sum: Tensor, addend: Tensor, stream: Stream): void {
  kernels.binary({ a: sum, b: addend, out: sum, op: 'add', accumulate: false }, stream);
}

/**
 * Stages 1 and 2: every rank holds whole units and updates a shard of each. An all-gather
 * distributes the shards in place, in the order of updates. A unit that the host has updated is
 * sent alone, on a separate stream: compute reads the first units while the last are updated.
 */
export class PublishedWeights implements WeightFlow {
  readonly isSharded = false;
  private readonly buckets: Buckets;
  /** Units that the compute stream does not wait for yet; null until they are sent. */
  private readonly awaited = new Map<WeightUnit, Event | null>();
  private readonly events: Event[] = [];
  /** The stream for units that the host has updated. */
  private readonly separateStream: Stream;

  constructor(
    private readonly device: Device,
    private readonly group: Collectives,
    private readonly options: BucketOptions,
  ) {
    this.buckets = new Buckets(device, options);
    this.separateStream = Stream.create(device, 'weights between ranks');
  }

  keep(unit: WeightUnit): OwnedShard {
    const range = shardOf(unit.layout.numel, this.group.rank, this.group.size);
    return [range, new MemoryStore(sliceFlat(unit.allocate(), range))];
  }

  publish(shard: WeightShard, stream: Stream, changed?: Event): void {
    if (stream === this.device.compute) this.publishInBuckets(shard, stream);
    else this.publishSeparately(shard, stream, changed);
  }

  private publishInBuckets(shard: WeightShard, stream: Stream): void {
    const { unit } = shard;
    const computed = this.takeEvent().record(stream);
    this.setAwaited(unit, null);
    this.buckets.add({
      numel: unit.layout.numel,
      start: (on) => {
        on.wait(computed);
        this.events.push(computed);
        return this.gather(shard, on);
      },
      complete: (on) => this.setAwaited(unit, this.takeEvent().record(on)),
    });
  }

  private publishSeparately(shard: WeightShard, stream: Stream, changed?: Event): void {
    const { separateStream, device } = this;
    const order = this.takeEvent();
    separateStream.wait(changed ?? order.record(stream));
    // All reads of the old weights have finished.
    separateStream.wait(order.record(device.compute));
    const end = this.options.timer.beginCollective(separateStream);
    const work = this.gather(shard, separateStream);
    end();
    work.wait(separateStream);
    this.setAwaited(shard.unit, order.record(separateStream));
  }

  /** Sets the event that readers of the unit wait for, and recycles the last one. */
  private setAwaited(unit: WeightUnit, gathered: Event | null): void {
    const last = this.awaited.get(unit);
    if (last) this.events.push(last);
    this.awaited.set(unit, gathered);
  }

  private gather({ unit, weights }: WeightShard, stream: Stream): Work {
    const at = { stream, purpose: `weights of ${unit.name}` };
    return this.group.allGather(unit.weights, weights, at);
  }

  dispatch(): void {
    this.buckets.dispatch();
  }

  acquire(unit: WeightUnit): void {
    if (!this.awaited.has(unit)) return;
    if (this.awaited.get(unit) === null) this.buckets.flush();
    const gathered = required(this.awaited.get(unit));
    const { compute } = this.device;
    const end = this.options.timer.beginStall(compute);
    compute.wait(gathered);
    end();
    this.awaited.delete(unit);
    this.events.push(gathered);
  }

  dispose(): void {
    this.buckets.dispose();
    this.separateStream.synchronize();
    this.separateStream.dispose();
    for (const event of [...this.events, ...this.awaited.values()]) event?.dispose();
  }

  private takeEvent(): Event {
    return this.events.pop() ?? new Event(this.device);
  }
}

/** Wraps the flow `inner`. `group`: the tensor-parallel ranks. */
export function sumPartialGradients(inner: GradientFlow, group: Collectives): GradientFlow {
  const partialOf = new Map<Unit, readonly LayoutEntry[]>();
  return {
    route: inner.route,
    takesEach: inner.takesEach,
    get factor() {
      return inner.factor;
    },
    reduce(partition, receiver) {
      const { unit } = partition;
      const isPartial = (entry: LayoutEntry): boolean => unit.parameterOf(entry).hasPartialGradient;
      const entries = partialOf.get(unit) ?? unit.layout.entries.filter(isPartial);
      partialOf.set(unit, entries);
      if (entries.length > 0) sumEntries(unit, entries, group);
      inner.reduce(partition, receiver);
    },
  };
}

/** Runs one all-reduce for all `entries` of the unit, in the order of the compute stream. */
function sumEntries(unit: Unit, entries: readonly LayoutEntry[], group: Collectives): void {
  const { compute } = unit.device;
  const grad = unit.gradient.take();
  const count = entries.reduce((total, { numel }) => total + numel, 0);
  const packed = held(() => Tensor.empty([count], grad.dtype, unit.device));
  const each = (copy: (entry: LayoutEntry, packedAt: Range) => void): void => {
    let offset = 0;
    for (const entry of entries) {
      copy(entry, { offset, numel: entry.numel });
      offset += entry.numel;
    }
  };
  each((entry, at) => copyFlat(packed, at, grad, entry, compute));
  const purpose = `parts of gradients of ${unit.name}`;
  group.allReduce(packed, { stream: compute, purpose }).wait(compute);
  each((entry, at) => copyFlat(grad, entry, packed, at, compute));
  packed.release();
  grad.release();
}
