// Copies host arrays into new tensors: with a plain write on the CPU, through pinned memory and a
// separate stream on a GPU.

import { Buffer } from '../runtime/buffer.js';
import { cpu, type Device } from '../runtime/device.js';
import { required } from '../runtime/required.js';
import { Event, Stream } from '../runtime/stream.js';
import { Tensor } from '../tensor/index.js';
import type { HostArray } from './host-array.js';

/** Creates the tensors of batches on a device. The caller owns the tensors. */
export interface Uploader {
  /**
   * Copies arrays into new tensors. The arrays may change as soon as the call returns. Throws
   * DS_OUT_OF_MEMORY if device memory or pinned memory is full.
   */
  upload(arrays: readonly HostArray[]): Tensor[];
  /** Waits for the device, and frees staging memory. The uploader can still be used. */
  dispose(): void;
}

export function createUploader(device: Device): Uploader {
  return device.kind === 'cpu' ? new DirectUpload(device) : new StagedUpload(device);
}

/** Copies on the calling thread. On a GPU it waits for the copy. */
export class DirectUpload implements Uploader {
  constructor(private readonly device: Device) {}

  upload(arrays: readonly HostArray[]): Tensor[] {
    return arrays.map(({ dtype, shape, values }) => {
      const out = Tensor.empty(shape, dtype, this.device);
      out.buffer.write(0, values);
      return out;
    });
  }

  dispose(): void {}
}

/** Maximum number of batches with running copies. */
const SLOTS = 3;
/** Arrays in a slot start at multiples of this many bytes. */
const ALIGNMENT = 256;

/** Staging memory of one batch: pinned host memory, and device memory of the same size. */
interface Slot {
  host: Buffer;
  device: Buffer;
  /** Recorded on the upload stream after the copy to `device`. */
  arrived: Event;
  /** Recorded on the compute stream after the batch's tensors are filled from `device`. */
  consumed: Event;
}

/**
 * Copies a batch to pinned memory, and from there to the device on its own stream. The compute
 * stream waits for that copy, then fills the batch's tensors, which are ordinary memory of the
 * compute stream. The host waits only if it is SLOTS batches ahead of the device.
 */
export class StagedUpload implements Uploader {
  private stream: Stream | null = null;
  private readonly slots: (Slot | null)[] = new Array(SLOTS).fill(null);
  private nextIndex = 0;

  constructor(private readonly device: Device) {}

  upload(arrays: readonly HostArray[]): Tensor[] {
    if (arrays.length === 0) return [];
    this.stream ??= Stream.create(this.device, 'batches to the device', 'first');
    const offsets: number[] = [];
    let bytes = 0;
    for (const { values } of arrays) {
      offsets.push(bytes);
      bytes += Math.ceil(values.byteLength / ALIGNMENT) * ALIGNMENT;
    }
    const slot = this.takeSlot(bytes);
    arrays.forEach(({ values }, i) => {
      slot.host.write(required(offsets[i]), values, cpu().compute);
    });
    this.stream.wait(slot.consumed);
    slot.device.copyFrom(slot.host, { bytes }, this.stream);
    slot.arrived.record(this.stream);
    const { compute } = this.device;
    compute.wait(slot.arrived);
    const out = arrays.map(({ dtype, shape, values }, i) => {
      const tensor = Tensor.empty(shape, dtype, this.device);
      const range = { from: required(offsets[i]), bytes: values.byteLength };
      tensor.buffer.copyFrom(slot.device, range, compute);
      return tensor;
    });
    slot.consumed.record(compute);
    return out;
  }

  /** Returns the least recently used slot, after the copy from its pinned memory is complete. */
  private takeSlot(bytes: number): Slot {
    const at = this.nextIndex++ % SLOTS;
    const slotInUse = this.slots[at];
    if (slotInUse && slotInUse.host.bytes >= bytes) {
      slotInUse.arrived.synchronize();
      return slotInUse;
    }
    if (slotInUse) this.releaseSlot(slotInUse);
    this.slots[at] = null;
    const { device } = this;
    const size = Math.max(bytes, ALIGNMENT, slotInUse ? 2 * slotInUse.host.bytes : 0);
    const slot = {
      host: Buffer.allocatePinned(device, size),
      device: Buffer.allocate(device, size),
      arrived: new Event(device),
      consumed: new Event(device),
    };
    // The new device memory may be used only after earlier work of the compute stream.
    slot.consumed.record(device.compute);
    this.slots[at] = slot;
    return slot;
  }

  private releaseSlot({ host, device, arrived, consumed }: Slot): void {
    arrived.synchronize();
    host.release();
    device.release();
    arrived.dispose();
    consumed.dispose();
  }

  dispose(): void {
    for (const slot of this.slots) if (slot) this.releaseSlot(slot);
    this.slots.fill(null);
    this.stream?.dispose();
    this.stream = null;
  }
}
