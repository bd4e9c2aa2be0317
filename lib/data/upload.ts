// From host arrays to tensors: a plain write on the CPU, pinned staging and a stream on a GPU.

import { Buffer } from '../runtime/buffer.js';
import { cpu, type Device } from '../runtime/device.js';
import { required } from '../runtime/required.js';
import { Event, Stream } from '../runtime/stream.js';
import { Tensor } from '../tensor/index.js';
import type { HostArray } from './host-array.js';

/** Makes the tensors of batches on one device; the caller owns the tensors. */
export interface Uploader {
  /** The arrays may change as soon as the call returns. Throws DS_OUT_OF_MEMORY. */
  upload(arrays: readonly HostArray[]): Tensor[];
  /** Frees staging memory; waits for the device. The uploader can still be used. */
  dispose(): void;
}

export function uploaderFor(device: Device): Uploader {
  return device.kind === 'cpu' ? new DirectUpload(device) : new StagedUpload(device);
}

/** Copies at once; on a GPU, waits for the copy. */
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

/** Maximum number of batches in transfer. */
const SLOTS = 3;
/** Arrays start at multiples of this many bytes. */
const ALIGNMENT = 256;

/** The bytes of a batch in transfer: pinned host memory and device memory of the same size. */
interface Slot {
  host: Buffer;
  device: Buffer;
  /** The bytes have arrived in `device`: recorded on the upload stream. */
  arrived: Event;
  /** The batch's tensors have been filled from `device`: recorded on the compute stream. */
  taken: Event;
}

/**
 * Copies a batch into pinned memory, and from there to the device on its own stream. The compute
 * stream waits for the copy and fills the batch's tensors. The host waits only if it is SLOTS
 * batches ahead of the device. Batches are ordinary memory of the compute stream.
 */
export class StagedUpload implements Uploader {
  private stream: Stream | null = null;
  private readonly slots: (Slot | null)[] = new Array(SLOTS).fill(null);
  private turn = 0;

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
    const slot = this.nextSlot(bytes);
    arrays.forEach(({ values }, i) => {
      slot.host.write(required(offsets[i]), values, cpu().compute);
    });
    this.stream.wait(slot.taken);
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
    slot.taken.record(compute);
    return out;
  }

  /** The slot used longest ago, once its pinned memory may be overwritten. */
  private nextSlot(bytes: number): Slot {
    const at = this.turn++ % SLOTS;
    const found = this.slots[at];
    if (found && found.host.bytes >= bytes) {
      found.arrived.synchronize();
      return found;
    }
    if (found) this.release(found);
    this.slots[at] = null;
    const { device } = this;
    const size = Math.max(bytes, ALIGNMENT, found ? 2 * found.host.bytes : 0);
    const slot = {
      host: Buffer.allocatePinned(device, size),
      device: Buffer.allocate(device, size),
      arrived: new Event(device),
      taken: new Event(device),
    };
    // The device's memory is allocated in the order of the compute stream.
    slot.taken.record(device.compute);
    this.slots[at] = slot;
    return slot;
  }

  private release({ host, device, arrived, taken }: Slot): void {
    arrived.synchronize();
    host.release();
    device.release();
    arrived.dispose();
    taken.dispose();
  }

  dispose(): void {
    for (const slot of this.slots) if (slot) this.release(slot);
    this.slots.fill(null);
    this.stream?.dispose();
    this.stream = null;
  }
}
