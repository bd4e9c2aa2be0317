// Flat tensors in pinned host memory, and their upload.
import { Buffer } from '../../runtime/buffer.js';
import type { Device } from '../../runtime/device.js';
import { type DType, dtypeSize } from '../../runtime/dtype.js';
import * as kernels from '../../runtime/kernels.generated.js';
import { copyFlat } from '../../tensor/flat.js';
import { held, Tensor } from '../../tensor/index.js';

/** Returns a zero-filled tensor in pinned host memory. The caller releases it. */
export function allocatePinned(device: Device, shape: readonly number[], dtype: DType): Tensor {
  const bytes = shape.reduce((a, b) => a * b, dtypeSize(dtype));
  return held(() => new Tensor(Buffer.allocatePinned(device, bytes), dtype, shape));
}

/** Returns a tensor in pinned memory with `value` in every element, complete on return. */
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

/** Rounds f32 in pinned memory to `weights` on the device. Blocks until complete. */
export function uploadRounded(master: Tensor, weights: Tensor): void {
  const { device } = weights;
  const wide = held(() => Tensor.empty(master.shape, 'f32', device));
  const all = { offset: 0, numel: weights.numel };
  copyFlat(wide, all, master, all, device.compute);
  kernels.copy({ in: wide, out: weights });
  wide.release();
  device.compute.synchronize();
}
