// WeightFlow: the weights of a unit on this rank, and the transfer of updated weights to other
// ranks.

import type { Device } from '../runtime/device.js';
import { required } from '../runtime/required.js';
import { Event, Stream } from '../runtime/stream.js';
import { sliceFlat } from '../tensor/flat.js';
import type { Collectives, Work } from './collectives.js';
import { Exchange, type ExchangeOptions } from './exchange.js';
import { type Range, shardOf } from './layout.js';
import { InMemory, Partition, WeightShard, type WeightStore } from './shard.js';
import type { Unit } from './unit.js';
import type { WeightUnit } from './weight-unit.js';

/** Methods without a use in a flow do nothing. */
export interface WeightFlow {
  /** Whether weights are gathered by acquire() and freed by release(). */
  readonly isSharded: boolean;
  /** Bytes of pinned slots for weights on a disk. */
  readonly slotBytes: number;
  /**
   * Returns the partition of a unit that this rank updates, with storage for its weights. The
   * caller owns it.
   */
  partitionOf(unit: Unit): Partition;
  /** Returns the shard of a frozen unit on this rank. The caller owns it. */
  shardOf(unit: WeightUnit): WeightShard;
  /** Called before the unit's initial weights are written. */
  adopting(unit: WeightUnit): void;
  /** Called after they are written, on the compute stream. */
  adopted(shard: WeightShard): void;
  /** Lets later compute work read the unit's weights. */
  acquire(unit: WeightUnit): void;
  /** Ends the reads until the next acquire(). */
  release(unit: WeightUnit): void;
  /** Called after every unit's gradient of this backward is sent. */
  endBackward(): void;
  /**
   * The shard's weights change in the order of `stream`, before `changed` if given. `changed` keeps
   * its mark until the next publish().
   */
  publish(shard: WeightShard, stream: Stream, changed?: Event): void;
  /**
   * Called after every partition of an update is published. Starts their collectives, at the same
   * place on all ranks.
   */
  dispatch(): void;
  dispose(): void;
}

/**
 * The range of a shard in its unit, the storage of its weights, and the range that this rank
 * counts.
 */
type Kept = [range: Range, store: WeightStore, counted?: Range];

/** Base class with no-ops. */
abstract class HeldWeights implements WeightFlow {
  readonly isSharded = false;
  readonly slotBytes = 0;

  /** Returns the arguments of a Partition, or of a WeightPart. */
  protected abstract keep(unit: WeightUnit): Kept;

  partitionOf(unit: Unit): Partition {
    return new Partition(unit, ...this.keep(unit));
  }

  shardOf(unit: WeightUnit): WeightShard {
    return new WeightShard(unit, ...this.keep(unit));
  }

  adopting(_unit: WeightUnit): void {}

  adopted(_shard: WeightShard): void {}

  acquire(_unit: WeightUnit): void {}

  release(_unit: WeightUnit): void {}

  endBackward(): void {}

  publish(_shard: WeightShard, _stream: Stream, _changed?: Event): void {}

  dispatch(): void {}

  dispose(): void {}
}

/** Stage 0, and a single rank: every rank updates the whole unit. */
export class WholeWeights extends HeldWeights {
  constructor(private readonly group: Pick<Collectives, 'rank' | 'size'>) {
    super();
  }

  protected override keep(unit: WeightUnit): Kept {
    const { numel } = unit.layout;
    // The norm is summed shard by shard at every stage, for equal bits.
    const counted = shardOf(numel, this.group.rank, this.group.size);
    return [{ offset: 0, numel }, new InMemory(unit.allocate().retain()), counted];
  }
}

/**
 * Stages 1 and 2: every rank holds whole units and updates a shard of each. An all-gather
 * distributes the shards in place, in the order of updates; a reader waits only for its own unit.
 * Host updates take longer than a forward, so each unit is sent when it is ready, on a separate
 * stream. Compute then reads the first units while the last are updated.
 */
export class PublishedWeights extends HeldWeights {
  private readonly exchange: Exchange;
  /**
   * Units with gathered weights that the compute stream does not wait for yet; null until they are
   * sent.
   */
  private readonly awaited = new Map<WeightUnit, Event | null>();
  private readonly events: Event[] = [];
  /** The stream for units that the host has updated. */
  private readonly beside: Stream;

  constructor(
    private readonly device: Device,
    private readonly group: Collectives,
    private readonly options: ExchangeOptions,
  ) {
    super();
    this.exchange = new Exchange(device, options);
    this.beside = Stream.create(device, 'weights between ranks');
  }

  protected override keep(unit: WeightUnit): Kept {
    const range = shardOf(unit.layout.numel, this.group.rank, this.group.size);
    return [range, new InMemory(sliceFlat(unit.allocate(), range))];
  }

  override publish(shard: WeightShard, stream: Stream, changed?: Event): void {
    if (stream === this.device.compute) this.publishInBuckets(shard, stream);
    else this.publishBeside(shard, stream, changed);
  }

  private publishInBuckets(shard: WeightShard, stream: Stream): void {
    const { unit } = shard;
    const computed = this.event().record(stream);
    this.await(unit, null);
    this.exchange.add({
      numel: unit.layout.numel,
      start: (on) => {
        on.wait(computed);
        this.events.push(computed);
        return this.gather(shard, on);
      },
      done: (on) => this.await(unit, this.event().record(on)),
    });
  }

  private publishBeside(shard: WeightShard, stream: Stream, changed?: Event): void {
    const { beside, device } = this;
    const order = this.event();
    beside.wait(changed ?? order.record(stream));
    // All reads of the old weights have finished.
    beside.wait(order.record(device.compute));
    const end = this.options.timer.collective(beside);
    const work = this.gather(shard, beside);
    end();
    work.wait(beside);
    this.await(shard.unit, order.record(beside));
  }

  /** Sets the event that readers of the unit wait for, and recycles the last one. */
  private await(unit: WeightUnit, gathered: Event | null): void {
    const last = this.awaited.get(unit);
    if (last) this.events.push(last);
    this.awaited.set(unit, gathered);
  }

  private gather({ unit, weights }: WeightShard, stream: Stream): Work {
    const at = { stream, purpose: `weights of ${unit.name}` };
    return this.group.allGather(unit.weights, weights, at);
  }

  override dispatch(): void {
    this.exchange.dispatch();
  }

  override acquire(unit: WeightUnit): void {
    if (!this.awaited.has(unit)) return;
    if (this.awaited.get(unit) === null) this.exchange.flush();
    const gathered = required(this.awaited.get(unit));
    const { compute } = this.device;
    const end = this.options.timer.stall(compute);
    compute.wait(gathered);
    end();
    this.awaited.delete(unit);
    this.events.push(gathered);
  }

  override dispose(): void {
    this.exchange.dispose();
    this.beside.synchronize();
    this.beside.dispose();
    for (const event of [...this.events, ...this.awaited.values()]) event?.dispose();
  }

  private event(): Event {
    return this.events.pop() ?? new Event(this.device);
  }
}
