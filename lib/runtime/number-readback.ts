// Copies numbers of a device to the host. The host reads them later, usually without waiting.
import { Buffer } from './buffer.js';
import type { Device } from './device.js';
import { Event, Stream, type Urgency } from './stream.js';

/** A contiguous f32 tensor on the device. */
interface Numbers {
  readonly buffer: Buffer;
  /** Offset in elements. */
  readonly offset: number;
  readonly numel: number;
}

/** Pinned host memory for `count` numbers of a device. */
export class NumberReadback {
  private readonly onHost: Buffer;
  private readonly copied: Event;
  /** A separate stream, so that reading waits for `copied` and not for later compute work. */
  private readonly readStream: Stream;
  private isPending = false;

  constructor(
    private readonly device: Device,
    private readonly count: number,
    urgency?: Urgency,
  ) {
    this.onHost = Buffer.allocatePinned(device, 4 * count);
    this.copied = new Event(device);
    this.readStream = Stream.create(device, 'numbers to the host', urgency);
  }

  /** Enqueues copies of `all`, in order, after the present compute work. */
  fetch(...all: readonly Numbers[]): void {
    const { compute } = this.device;
    let to = 0;
    for (const { buffer, offset, numel } of all) {
      const bytes = 4 * numel;
      this.onHost.copyFrom(buffer, { to, from: 4 * offset, bytes }, compute);
      to += bytes;
    }
    this.copied.record(compute);
    this.isPending = true;
  }

  /**
   * Returns the numbers of the last fetch() once; null if they were taken before. Blocks until they
   * arrive.
   */
  take(): Float32Array | null {
    if (!this.isPending) return null;
    this.isPending = false;
    this.copied.synchronize();
    const values = new Float32Array(this.count);
    this.onHost.read(0, values, this.readStream);
    return values;
  }

  dispose(): void {
    this.copied.synchronize();
    this.copied.dispose();
    this.readStream.dispose();
    this.onHost.release();
  }
}
