// Beside: the stream on which a group's collectives run while the compute stream goes on.
import type { Device } from '../runtime/device.js';
import { Event, Stream } from '../runtime/stream.js';

/** One group's stream beside the compute stream, and the events that tie it to that. */
export class Beside {
  private readonly stream: Stream;
  private readonly computed: Event;
  private readonly begun: Event;

  /** Traces call it by the `name` of the group. */
  constructor(
    private readonly device: Device,
    name: string,
  ) {
    this.stream = Stream.create(device, `exchanges of ${name}`);
    this.computed = new Event(device);
    this.begun = new Event(device);
  }

  /**
   * The stream, whose next work starts after what compute has enqueued so far: memory that compute
   * has let go of is free by then, and what it has written is there. Compute waits for nothing.
   */
  follow(): Stream {
    this.stream.wait(this.computed.record(this.device.compute));
    return this.stream;
  }

  /**
   * follow(), after which what compute enqueues next starts no earlier than the stream's next work
   * can. A product fills a GPU: had it begun, a collective would wait for its first blocks to end,
   * which is most of the time that the two could share. Waits for what the stream had before, too.
   */
  lead(): Stream {
    const stream = this.follow();
    this.device.compute.wait(this.begun.record(stream));
    return stream;
  }

  /** Gives the stream back once its work is done. */
  dispose(): void {
    this.computed.dispose();
    this.begun.dispose();
    this.stream.dispose();
  }
}
