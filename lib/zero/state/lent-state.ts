// LentState: a fragment of state that a reader or writer borrows in memory.
import { Event, type Stream } from '../../runtime/stream.js';
import type { Tensor } from '../../tensor/index.js';

export interface Bytes {
  device: number;
  host: number;
  disk: number;
}

/** Returns the bytes of `tensors` by location. */
export function bytesOf(tensors: Iterable<Tensor | null>): Bytes {
  const sum = { device: 0, host: 0, disk: 0 };
  for (const tensor of tensors)
    if (tensor) sum[tensor.buffer.pinned ? 'host' : 'device'] += tensor.bytes;
  return sum;
}

/** Returns the sum of `all` by location. */
export function totalBytes(all: readonly (Partial<Bytes> | undefined)[]): Bytes {
  const sum = (at: keyof Bytes): number =>
    all.reduce((total, item) => total + (item?.[at] ?? 0), 0);
  return { device: sum('device'), host: sum('host'), disk: sum('disk') };
}

/** A fragment of state in memory. The borrower releases `tensor`. */
export class LentState {
  constructor(
    /** Flat, or in the parameter's shape if it is whole. Undefined until wait() or arrived(). */
    readonly tensor: Tensor,
    /** The stream that orders its values and later updates. */
    private readonly order: Stream,
    /**
     * Makes values written to `tensor`, by the host or on the compute stream, the new state. Writes
     * a copy back.
     */
    readonly keep: () => void = () => {},
  ) {}

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
