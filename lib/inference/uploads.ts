// Small arrays on their way from the host to a device, which nobody waits for.
import { Buffer } from '../runtime/buffer.js';
import { cpu, type Device } from '../runtime/device.js';
import { Event } from '../runtime/stream.js';

const ARENA = 2 ** 20;
const ARENAS = 4;

/** Pinned memory that is filled from its beginning. */
interface Arena {
  readonly host: Buffer;
  /** The copies from it are done: recorded when it was full. */
  readonly copied: Event;
  isUnderWay: boolean;
}

/**
 * Writes to buffers of a device in the order of its compute stream. The values lie in pinned memory
 * until they are there, of which there is as much as many steps take; where that is not enough the
 * host waits for the oldest copies. On the CPU, and for what is larger than an arena, a plain
 * write.
 */
export class Uploads {
  private readonly arenas: (Arena | null)[] = new Array(ARENAS).fill(null);
  private current = 0;
  private used = 0;

  constructor(readonly device: Device) {}

  /** Copies `values` to byte `offset` of `target`; they may change as soon as the call returns. */
  write(target: Buffer, offset: number, values: ArrayBufferView): void {
    const bytes = values.byteLength;
    if (bytes === 0) return;
    if (this.device.kind === 'cpu' || bytes > ARENA) {
      target.write(offset, values);
      return;
    }
    const { host } = this.arenaFor(bytes);
    host.write(this.used, values, cpu().compute);
    target.copyFrom(host, { to: offset, from: this.used, bytes }, this.device.compute);
    this.used += Math.ceil(bytes / 16) * 16;
  }

  /** Gives the memory back once its copies are done. */
  dispose(): void {
    for (const arena of this.arenas) {
      if (!arena) continue;
      arena.copied.record(this.device.compute).synchronize();
      arena.copied.dispose();
      arena.host.release();
    }
    this.arenas.fill(null);
  }

  private arenaFor(bytes: number): Arena {
    const open = this.arenas[this.current];
    if (open && this.used + bytes <= ARENA) return open;
    if (open) {
      open.copied.record(this.device.compute);
      open.isUnderWay = true;
      this.current = (this.current + 1) % ARENAS;
    }
    this.used = 0;
    const next = this.arenas[this.current] ?? this.made();
    this.arenas[this.current] = next;
    if (next.isUnderWay) next.copied.synchronize();
    next.isUnderWay = false;
    return next;
  }

  private made(): Arena {
    const host = Buffer.allocatePinned(this.device, ARENA);
    return { host, copied: new Event(this.device), isUnderWay: false };
  }
}
