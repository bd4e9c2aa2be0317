// Brings updated shards of whole units to all ranks: the publish verb of stages 1 and 2.
import type { Device } from '../runtime/device.js';
import { Event, type Stream } from '../runtime/stream.js';
import type { Collectives } from './collectives.js';
import { Exchange, type ExchangeOptions } from './exchange.js';
import type { Partition } from './partition.js';
import type { Unit } from './unit.js';

/** A unit's weights are gathered in place, in the order of updates; whoever reads them waits for them alone. */
export class WeightsExchange {
  private readonly exchange: Exchange;
  /** Units whose gathered weights the compute stream has not been told to wait for; null until they are sent. */
  private readonly awaited = new Map<Unit, Event | null>();
  private readonly events: Event[] = [];

  constructor(
    private readonly device: Device,
    private readonly group: Collectives,
    private readonly options: ExchangeOptions,
  ) {
    this.exchange = new Exchange(device, options);
  }

  /** The partition's weights change in the order of `stream`. */
  publish({ unit, weights }: Partition, stream: Stream): void {
    const changed = this.event().record(stream);
    this.awaited.set(unit, null);
    this.exchange.add({
      numel: unit.layout.numel,
      start: (on) => {
        on.wait(changed);
        this.events.push(changed);
        return this.group.allGather(unit.weights, weights, {
          stream: on,
          purpose: `weights of ${unit.name}`,
        });
      },
      done: (on) => this.awaited.set(unit, this.event().record(on)),
    });
  }

  /** Every partition of an update was published: their collectives are under way, on all ranks at the same place. */
  dispatch(): void {
    this.exchange.dispatch();
  }

  /** Later compute work sees all of the unit's weights. */
  acquire(unit: Unit): void {
    if (!this.awaited.has(unit)) return;
    if (this.awaited.get(unit) === null) this.exchange.flush();
    const gathered = this.awaited.get(unit) as Event;
    const { compute } = this.device;
    this.options.timer.stall(compute, () => compute.wait(gathered));
    this.awaited.delete(unit);
    this.events.push(gathered);
  }

  dispose(): void {
    this.exchange.dispose();
    for (const event of [...this.events, ...this.awaited.values()]) event?.dispose();
  }

  private event(): Event {
    return this.events.pop() ?? new Event(this.device);
  }
}
