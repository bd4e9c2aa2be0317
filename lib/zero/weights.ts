// The weight flows of stages 0 to 2. Every rank holds whole units. Stages 1 and 2 all-gather
// weights after updates.

import type { Device } from '../runtime/device.js';
import { required } from '../runtime/required.js';
import { Event, Stream } from '../runtime/stream.js';
import { sliceFlat } from '../tensor/flat.js';
import { type BucketOptions, Buckets } from './gradients.js';
import { shardOf } from './layout.js';
import { MemoryStore, type WeightShard } from './partition.js';
import type { OwnedShard, WeightFlow } from './stage.js';
import type { WeightUnit } from './unit.js';
import type { Collectives, Work } from './wire.js';

/** Stage 0: every rank updates whole units, so weights need no communication. */
export class WholeWeights implements WeightFlow {
  readonly isSharded = false;

  constructor(private readonly group: Pick<Collectives, 'rank' | 'size'>) {}

  keep(unit: WeightUnit): OwnedShard {
    const { numel } = unit.layout;
    // Every stage sums the norm shard by shard, so all stages get the same bits.
    const counted = shardOf(numel, this.group.rank, this.group.size);
    return [{ offset: 0, numel }, new MemoryStore(unit.allocate().retain()), counted];
  }
}

/**
 * Stages 1 and 2: every rank holds whole units and updates one shard of each. An all-gather
 * distributes the shards in place, in the order of updates. A unit that the host updates has its
 * own all-gather on a separate stream. Compute can then read the first units while the host updates
 * the last ones.
 */
export class PublishedWeights implements WeightFlow {
  readonly isSharded = false;
  private readonly buckets: Buckets;
  /**
   * Units that compute has not waited for yet, each with the event after its gather. Null before
   * the gather is sent.
   */
  private readonly awaited = new Map<WeightUnit, Event | null>();
  private readonly events: Event[] = [];
  /** The stream of gathers after updates on the host. */
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
    // Compute has read the old weights for the last time.
    separateStream.wait(order.record(device.compute));
    const end = this.options.timer.beginCollective(separateStream);
    const work = this.gather(shard, separateStream);
    end();
    work.wait(separateStream);
    this.setAwaited(shard.unit, order.record(separateStream));
  }

  /** Sets the event that readers of the unit wait for. The previous event can be reused. */
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
