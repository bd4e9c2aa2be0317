// What a home lends of the state that it keeps, and where its bytes are.
import { Event, type Stream } from '../../runtime/stream.js';
import type { Tensor } from '../../tensor/index.js';

export interface Bytes {
  device: number;
  host: number;
  disk: number;
}

/** A piece of state, in memory while it is lent. Whoever borrows it releases `tensor`. */
export class LentState {
  constructor(
    /**
     * Flat, in its shape where it is a whole parameter; what it holds is undefined until it is
     * there.
     */
    readonly tensor: Tensor,
    /** In whose order its values come, and later updates take what was written. */
    private readonly order: Stream,
    /** Where `tensor` is a copy: brings it back to the state. */
    private readonly bringBack: () => void = () => {},
  ) {}

  /**
   * What was written to `tensor`, by the host or on the compute stream, is the state from now on.
   */
  keep(): void {
    this.bringBack();
  }

  /** Blocks until the values are there. */
  wait(): void {
    this.order.synchronize();
  }

  /** Resolves when they are, without blocking the event loop. */
  async arrived(): Promise<void> {
    const event = new Event(this.order.device).record(this.order);
    try {
      await event.reached();
    } finally {
      event.dispose();
    }
  }
}
