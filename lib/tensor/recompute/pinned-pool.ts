// A pool of pinned host buffers: a segment's inputs take one, the next step reuses it.
import { Buffer } from '../../runtime/buffer.js';
import type { Device } from '../../runtime/device.js';
import { Event } from '../../runtime/stream.js';

/** A pinned buffer on loan. */
export interface PinnedSlot {
  readonly buffer: Buffer;
  /** The last read of the buffer; the next writer waits for it. */
  readonly read: Event;
}

/** Not thread-safe; slots return when their last read has been enqueued. */
export class PinnedPool {
  private idle: PinnedSlot[] = [];
  private recycles = true;

  constructor(private readonly device: Device) {}

  /**
   * The smallest idle slot of at least `bytes` and at most twice as many, else a new one of
   * `bytes`. Throws DS_OUT_OF_MEMORY.
   */
  take(bytes: number): PinnedSlot {
    this.recycles = true;
    let best: PinnedSlot | null = null;
    for (const slot of this.idle) {
      const fits = slot.buffer.bytes >= bytes && slot.buffer.bytes <= 2 * bytes;
      if (fits && (!best || slot.buffer.bytes < best.buffer.bytes)) best = slot;
    }
    if (best) {
      this.idle.splice(this.idle.indexOf(best), 1);
      return best;
    }
    return { buffer: Buffer.allocatePinned(this.device, bytes), read: new Event(this.device) };
  }

  give(slot: PinnedSlot): void {
    if (this.recycles) this.idle.push(slot);
    else free(slot);
  }

  /** Frees idle slots, and slots that return before the next take(). */
  drain(): void {
    this.recycles = false;
    for (const slot of this.idle) free(slot);
    this.idle = [];
  }
}

/** Waits for the device to be done with it. */
function free({ buffer, read }: PinnedSlot): void {
  buffer.release();
  read.dispose();
}
