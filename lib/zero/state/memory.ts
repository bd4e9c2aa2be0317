// Helpers for the memory of optimizer state: bytes by location, lent fragments, and pinned host
// tensors.

import { Buffer } from '../../runtime/buffer.js';
import type { Device } from '../../runtime/device.js';
import { type DType, dtypeSize } from '../../runtime/dtype.js';
import * as kernels from '../../runtime/kernels.generated.js';
import { Event, type Stream } from '../../runtime/stream.js';
import { copyFlat } from '../../tensor/flat.js';
import { held, Tensor } from '../../tensor/index.js';

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

/** Returns the sum of all byte counts by location. */
export function totalBytes(all: readonly (Partial<Bytes> | undefined)[]): Bytes {
  const sum = (at: keyof Bytes): number =>
    all.reduce((total, item) => total + (item?.[at] ?? 0), 0);
  return { device: sum('device'), host: sum('host'), disk: sum('disk') };
}

/** A fragment of optimizer state or weights that a caller borrows. The caller releases `tensor`. */
export class LentState {
  constructor(
    /** In the parameter's shape if it is whole, else flat. Undefined before wait() or arrived(). */
    readonly tensor: Tensor,
    /** The stream that orders the values of `tensor`, and later updates. */
    private readonly order: Stream,
    /**
     * Makes the values in `tensor` the new state. The host or the compute stream wrote them. If
     * `tensor` is a copy, this writes it back.
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

/** Returns a zero-filled tensor in pinned host memory. The caller releases it. */
export function allocatePinned(device: Device, shape: readonly number[], dtype: DType): Tensor {
  const bytes = shape.reduce((a, b) => a * b, dtypeSize(dtype));
  return held(() => new Tensor(Buffer.allocatePinned(device, bytes), dtype, shape));
}

/**
 * Returns a tensor in pinned memory filled with `value`, complete on return. The caller releases
 * it.
 */
export function allocateFilled(
  device: Device,
  shape: readonly number[],
  dtype: DType,
  value: number,
): Tensor {
  const out = allocatePinned(device, shape, dtype);
  if (value === 0) return out;
  kernels.fillOnHost({ out, value }, device.compute);
  device.compute.synchronize();
  return out;
}

/** Rounds f32 masters in pinned memory to `weights` on the device. Blocks until complete. */
export function uploadRounded(master: Tensor, weights: Tensor): void {
  const { device } = weights;
  const wide = held(() => Tensor.empty(master.shape, 'f32', device));
  const all = { offset: 0, numel: weights.numel };
  copyFlat(wide, all, master, all, device.compute);
  kernels.copy({ in: wide, out: weights });
  wide.release();
  device.compute.synchronize();
}
