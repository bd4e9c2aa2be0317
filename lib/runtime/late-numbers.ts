// Numbers of a device that the host reads later, without waiting.
import { Buffer } from './buffer.js';
import type { Device } from './device.js';
import { Event, Stream, type Urgency } from './stream.js';

/** f32 on the device: a contiguous tensor. */
interface Numbers {
  readonly buffer: Buffer;
  /** Offset in elements. */
  readonly offset: number;
  readonly numel: number;
}

/** Owns pinned memory for `count` numbers. */
export class LateNumbers {
  private readonly onHost: Buffer;
  private readonly fetched: Event;
  /** A separate stream, so that reading waits for `fetched` and not for later compute work. */
  private readonly reading: Stream;
  private isPending = false;

  constructor(
    private readonly device: Device,
    private readonly count: number,
    urgency?: Urgency,
  ) {
    this.onHost = Buffer.allocatePinned(device, 4 * count);
    this.fetched = new Event(device);
    this.reading = Stream.create(device, 'numbers to the host', urgency);
  }

  /** Enqueues copies of `all`, in order, after the compute work so far. */
  fetch(...all: readonly Numbers[]): void {
    const { compute } = this.device;
    let to = 0;
    for (const { buffer, offset, numel } of all) {
      const bytes = 4 * numel;
      this.onHost.copyFrom(buffer, { to, from: 4 * offset, bytes }, compute);
      to += bytes;
    }
    this.fetched.record(compute);
    this.isPending = true;
  }

  /**
   * Returns the numbers of the last fetch() once; null if they were taken before. Blocks until they
   * arrive.
   */
  take(): Float32Array | null {
    if (!this.isPending) return null;
    this.isPending = false;
    this.fetched.synchronize();
    const values = new Float32Array(this.count);
    this.onHost.read(0, values, this.reading);
    return values;
  }

  dispose(): void {
    this.fetched.synchronize();
    this.fetched.dispose();
    this.reading.dispose();
    this.onHost.release();
  }
}
