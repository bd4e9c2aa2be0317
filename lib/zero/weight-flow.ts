// How weights flow: what of a unit a rank keeps, and how updated weights reach the ranks that
// compute with them.
import type { Device } from '../runtime/device.js';
import { Event, Stream } from '../runtime/stream.js';
import type { Collectives, Work } from './collectives.js';
import { Exchange, type ExchangeOptions } from './exchange.js';
import { sliceFlat } from './flat.js';
import { InMemory, type WeightPlace } from './home/weight-place.js';
import { type Range, shardOf } from './layout.js';
import { Partition, WeightPart } from './partition.js';
import type { Unit } from './unit.js';
import type { WeightUnit } from './weight-unit.js';

/** Verbs that a flow has no use for do nothing. */
export interface WeightFlow {
  /** Whether weights come with acquire() and go with release(). */
  readonly isSharded: boolean;
  /** What this rank updates of a unit, in memory for its weights; belongs to the caller. */
  partitionOf(unit: Unit): Partition;
  /** Likewise what it keeps of a frozen unit. */
  partOf(unit: WeightUnit): WeightPart;
  /** The unit's initial weights are about to be written. */
  adopting(unit: WeightUnit): void;
  /** They have been written, on the compute stream. */
  adopted(part: WeightPart): void;
  /** Compute work enqueued from now on may read the unit's weights. */
  acquire(unit: WeightUnit): void;
  /** It no longer does, until the next acquire(). */
  release(unit: WeightUnit): void;
  /** Every unit's gradient of this backward is under way. */
  endBackward(): void;
  /**
   * The part's weights change in the order of `stream`, before `changed` where it is given, which
   * marks that until the part's next publish().
   */
  publish(part: WeightPart, stream: Stream, changed?: Event): void;
  /**
   * Every partition of an update was published: their collectives are under way, on all ranks at
   * the same place.
   */
  dispatch(): void;
  dispose(): void;
}

/** Where a part lies in its unit, where its weights are, and what of it this rank counts. */
type Kept = [range: Range, place: WeightPlace, counted?: Range];

/** What most flows leave undone. */
abstract class HeldWeights implements WeightFlow {
  readonly isSharded = false;

  /** The arguments of a Partition, or of a WeightPart. */
  protected abstract keep(unit: WeightUnit): Kept;

  partitionOf(unit: Unit): Partition {
    return new Partition(unit, ...this.keep(unit));
  }

  partOf(unit: WeightUnit): WeightPart {
    return new WeightPart(unit, ...this.keep(unit));
  }

  adopting(_unit: WeightUnit): void {}

  adopted(_part: WeightPart): void {}

  acquire(_unit: WeightUnit): void {}

  release(_unit: WeightUnit): void {}

  endBackward(): void {}

  publish(_part: WeightPart, _stream: Stream, _changed?: Event): void {}

  dispatch(): void {}

  dispose(): void {}
}

/** Stage 0, and one rank: every rank updates the whole unit. */
export class WholeWeights extends HeldWeights {
  constructor(private readonly group: Pick<Collectives, 'rank' | 'size'>) {
    super();
  }

  protected override keep(unit: WeightUnit): Kept {
    const { numel } = unit.layout;
    // The norm is summed shard by shard, as in the other stages: the same bits.
    const counted = shardOf(numel, this.group.rank, this.group.size);
    return [{ offset: 0, numel }, new InMemory(unit.allocate().retain()), counted];
  }
}

/**
 * Stages 1 and 2: every rank holds whole units and updates a shard of each, which an all-gather
 * brings to the others, in place and in the order of updates; whoever reads a unit waits for it
 * alone. What the host updates takes longer than a forward: each unit goes as soon as it is there,
 * on a stream of its own, and compute reads the first ones while the last are still updated.
 */
export class PublishedWeights extends HeldWeights {
  private readonly exchange: Exchange;
  /**
   * Units whose gathered weights the compute stream has not been told to wait for; null until they
   * are sent.
   */
  private readonly awaited = new Map<WeightUnit, Event | null>();
  private readonly events: Event[] = [];
  /** Where units go that the host has updated. */
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

  override publish(part: WeightPart, stream: Stream, changed?: Event): void {
    if (stream === this.device.compute) this.publishInBuckets(part, stream);
    else this.publishBeside(part, stream, changed);
  }

  private publishInBuckets(part: WeightPart, stream: Stream): void {
    const { unit } = part;
    const computed = this.event().record(stream);
    this.await(unit, null);
    this.exchange.add({
      numel: unit.layout.numel,
      start: (on) => {
        on.wait(computed);
        this.events.push(computed);
        return this.gather(part, on);
      },
      done: (on) => this.await(unit, this.event().record(on)),
    });
  }

  private publishBeside(part: WeightPart, stream: Stream, changed?: Event): void {
    const { beside, device } = this;
    const order = this.event();
    beside.wait(changed ?? order.record(stream));
    // What was read of the old weights has been.
    beside.wait(order.record(device.compute));
    const end = this.options.timer.collective(beside);
    const work = this.gather(part, beside);
    end();
    work.wait(beside);
    this.await(part.unit, order.record(beside));
  }

  /** Whoever reads the unit waits for this alone, also where nobody has waited for the last one. */
  private await(unit: WeightUnit, gathered: Event | null): void {
    const last = this.awaited.get(unit);
    if (last) this.events.push(last);
    this.awaited.set(unit, gathered);
  }

  private gather({ unit, weights }: WeightPart, stream: Stream): Work {
    const at = { stream, purpose: `weights of ${unit.name}` };
    return this.group.allGather(unit.weights, weights, at);
  }

  override dispatch(): void {
    this.exchange.dispatch();
  }

  override acquire(unit: WeightUnit): void {
    if (!this.awaited.has(unit)) return;
    if (this.awaited.get(unit) === null) this.exchange.flush();
    const gathered = this.awaited.get(unit) as Event;
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
