// Asynchronous uploads of small arrays from the host to a device.
import { Buffer } from '../runtime/buffer.js';
import { cpu, type Device } from '../runtime/device.js';
import { Event } from '../runtime/stream.js';

const ARENA = 2 ** 20;
const ARENAS = 4;

/** Pinned memory that is filled from its start. */
interface Arena {
  readonly host: Buffer;
  /** Recorded when the arena is full. Its copies are done when the event has completed. */
  readonly copied: Event;
  isInFlight: boolean;
}

/**
 * Writes to device buffers in the order of the compute stream. Values stay in pinned memory until
 * their copies are done. If all arenas are in flight, the host waits for the oldest one. An array
 * larger than an arena fills several. On the CPU, the write is synchronous.
 */
export class Uploads {
  private readonly arenas: (Arena | null)[] = new Array(ARENAS).fill(null);
  private current = 0;
  private used = 0;

  constructor(readonly device: Device) {}

  /**
   * Copies `values` to byte `offset` of `target`. The caller may change `values` after the call.
   */
  write(target: Buffer, offset: number, values: ArrayBufferView): void {
    const bytes = values.byteLength;
    if (bytes === 0) return;
    if (this.device.kind === 'cpu') {
      target.write(offset, values);
      return;
    }
    for (let from = 0; from < bytes; from += ARENA) {
      const part = Math.min(ARENA, bytes - from);
      const bytesOf = new Uint8Array(values.buffer, values.byteOffset + from, part);
      this.writePart(target, offset + from, bytesOf);
    }
  }

  private writePart(target: Buffer, offset: number, values: Uint8Array): void {
    const bytes = values.byteLength;
    const { host } = this.arenaFor(bytes);
    host.write(this.used, values, cpu().compute);
    target.copyFrom(host, { to: offset, from: this.used, bytes }, this.device.compute);
    this.used += Math.ceil(bytes / 16) * 16;
  }

  /** Frees the arenas after their copies. */
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
      open.isInFlight = true;
      this.current = (this.current + 1) % ARENAS;
    }
    this.used = 0;
    const next = this.arenas[this.current] ?? this.createArena();
    this.arenas[this.current] = next;
    if (next.isInFlight) next.copied.synchronize();
    next.isInFlight = false;
    return next;
  }

  private createArena(): Arena {
    const host = Buffer.allocatePinned(this.device, ARENA);
    return { host, copied: new Event(this.device), isInFlight: false };
  }
}
