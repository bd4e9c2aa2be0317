// LentState: a fragment of state in memory, lent to a reader or writer.
import { Event, type Stream } from '../../runtime/stream.js';
import type { Tensor } from '../../tensor/index.js';

export interface Bytes {
  device: number;
  host: number;
  disk: number;
}

/** A fragment of state in memory. The borrower releases `tensor`. */
export class LentState {
  constructor(
    /** Flat, or in the parameter's shape if it is whole. Undefined until wait() or arrived(). */
    readonly tensor: Tensor,
    /** The stream that orders its values and later updates. */
    private readonly order: Stream,
    /** If `tensor` is a copy: writes it back to the state. */
    private readonly bringBack: () => void = () => {},
  ) {}

  /** Makes values written to `tensor`, by the host or on the compute stream, the new state. */
  keep(): void {
    this.bringBack();
  }

  /** Blocks until the values are complete. */
  wait(): void {
    this.order.synchronize();
  }

  /** Resolves when the values are complete, without blocking the event loop. */
  async arrived(): Promise<void> {
    const event = new Event(this.order.device).record(this.order);
    try {
      await event.reached();
    } finally {
      event.dispose();
    }
  }
}
