// Beside: a group's stream for collectives in parallel with the compute stream.
import type { Device } from '../runtime/device.js';
import { Event, Stream } from '../runtime/stream.js';

/** A group's stream, and the events that order it with the compute stream. */
export class SideStream {
  private readonly stream: Stream;
  private readonly computed: Event;
  private readonly begun: Event;

  /** `name`: the group's name, for traces. */
  constructor(
    private readonly device: Device,
    name: string,
  ) {
    this.stream = Stream.create(device, `exchanges of ${name}`);
    this.computed = new Event(device);
    this.begun = new Event(device);
  }

  /**
   * Returns the stream. Its next work starts after all enqueued compute work, so memory that
   * compute has freed is free, and its writes are visible. Compute does not wait.
   */
  follow(): Stream {
    this.stream.wait(this.computed.record(this.device.compute));
    return this.stream;
  }

  /**
   * Calls follow(), then makes the next compute work start no earlier than the stream's next work.
   * A matrix product fills a GPU: if it started first, a collective would wait for its first
   * blocks, which is most of the time for overlap. Also waits for earlier work of the stream.
   */
  lead(): Stream {
    const stream = this.follow();
    this.device.compute.wait(this.begun.record(stream));
    return stream;
  }

  /** Disposes the stream after its work is done. */
  dispose(): void {
    this.computed.dispose();
    this.begun.dispose();
    this.stream.dispose();
  }
}
