// Functions that reads and writes of checkpoint files share: host buffers and device
// synchronization.
import { DsError } from '../errors.js';
import type { Buffer } from '../runtime/buffer.js';
import type { Device } from '../runtime/device.js';
import { Event } from '../runtime/stream.js';
import type { Tensor } from '../tensor/index.js';

/** Bytes of a staging buffer between device memory and files. */
export const STAGING_BYTES = 32 * 2 ** 20;

/** Returns whether the native file functions can access the memory: CPU or pinned memory. */
export function isHost(buffer: Buffer): boolean {
  return buffer.pinned || buffer.device.kind === 'cpu';
}

/** Resolves after the device's compute stream has completed the work that is queued now. */
export async function afterCompute(device: Device): Promise<void> {
  const event = new Event(device).record(device.compute);
  await event.reached();
  event.dispose();
}

/** Throws DS_SHAPE unless `tensor` is contiguous. The error calls it `name`. */
export function requireContiguous(name: string, tensor: Tensor): void {
  if (tensor.isContiguous) return;
  throw new DsError({
    code: 'DS_SHAPE',
    op: `checkpoint tensor "${name}"`,
    expected: 'a contiguous tensor',
    got: `strides [${tensor.strides.join(', ')}]`,
  });
}
