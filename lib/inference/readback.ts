// Copies tensors to the host. A reader waits for the kernels before its copy only.

import { Buffer } from '../runtime/buffer.js';
import { cpu, type Device } from '../runtime/device.js';
import { dtypeSize, rawArray } from '../runtime/dtype.js';
import { waitForEventLoop } from '../runtime/event-loop.js';
import { required } from '../runtime/required.js';
import { Event } from '../runtime/stream.js';
import type { Tensor } from '../tensor/index.js';

/** Maximum number of copies in flight. */
const SLOTS = 2;
const ALIGNMENT = 16;

interface Slot {
  host: Buffer;
  readonly copied: Event;
}

/** Values that are being copied to the host. */
interface PendingValues {
  /** Whether the copy is done. Throws a pending error of the device. */
  readonly isDone: boolean;
  /** Resolves when the copy is done. Waits in turns of the event loop. */
  done(): Promise<void>;
  /** Returns the values of each tensor. Valid after done() and before the second next begin(). */
  values(): number[][];
}

/** Copies from one device, at most two in flight. */
export class Readback {
  private readonly slots: (Slot | null)[] = new Array(SLOTS).fill(null);
  private turns = 0;

  constructor(private readonly device: Device) {}

  /** Enqueues copies of contiguous tensors (i32, i64 or f32) on the compute stream. */
  begin(tensors: readonly Tensor[]): PendingValues {
    if (this.device.kind === 'cpu') return createArrived(tensors.map((tensor) => tensor.toArray()));
    const starts: number[] = [];
    let bytes = 0;
    for (const { numel, dtype } of tensors) {
      starts.push(bytes);
      bytes += Math.ceil((numel * dtypeSize(dtype)) / ALIGNMENT) * ALIGNMENT;
    }
    const { host, copied } = this.takeSlot(bytes);
    const { compute } = this.device;
    const lists = tensors.map((tensor, i) => {
      const { numel, dtype, buffer, offset } = tensor;
      const size = numel * dtypeSize(dtype);
      const from = offset * dtypeSize(dtype);
      host.copyFrom(buffer, { to: required(starts[i]), from, bytes: size }, compute);
      return { dtype, numel, start: required(starts[i]) };
    });
    copied.record(compute);
    return {
      get isDone() {
        return copied.done;
      },
      async done() {
        while (!copied.done) await waitForEventLoop();
      },
      values: () =>
        lists.map(({ dtype, numel, start }) => {
          const list = rawArray(dtype, numel);
          host.read(start, list, cpu().compute);
          const values = new Array<number>(numel);
          for (let i = 0; i < numel; ++i) values[i] = Number(list[i]);
          return values;
        }),
    };
  }

  dispose(): void {
    for (const slot of this.slots) {
      slot?.copied.synchronize();
      slot?.copied.dispose();
      slot?.host.release();
    }
    this.slots.fill(null);
  }

  private takeSlot(bytes: number): Slot {
    const at = this.turns++ % SLOTS;
    const slot = this.slots[at] ?? {
      host: Buffer.allocatePinned(this.device, 4096),
      copied: new Event(this.device),
    };
    this.slots[at] = slot;
    if (slot.host.bytes < bytes) {
      slot.copied.synchronize();
      slot.host.release();
      slot.host = Buffer.allocatePinned(this.device, 2 * bytes);
    }
    return slot;
  }
}

function createArrived(lists: number[][]): PendingValues {
  return { isDone: true, done: async () => {}, values: () => lists };
}
