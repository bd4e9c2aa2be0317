// Common parts of reading and writing: host buffers, staging memory, and device synchronization.
import { DsError } from '../errors.js';
import type { Buffer } from '../runtime/buffer.js';
import type { Device } from '../runtime/device.js';
import { Event } from '../runtime/stream.js';
import type { Tensor } from '../tensor/index.js';

/** Size of staging buffers between device memory and files. */
export const STAGING_BYTES = 32 * 2 ** 20;

/** Returns whether the file engine can access the memory directly. */
export function isHost(buffer: Buffer): boolean {
  return buffer.pinned || buffer.device.kind === 'cpu';
}

/** Resolves when the device's compute stream has passed this point. */
export async function afterCompute(device: Device): Promise<void> {
  const event = new Event(device).record(device.compute);
  await event.reached();
  event.dispose();
}

/** Throws DS_SHAPE unless `tensor` is contiguous. `name` is its name in the error. */
export function requireContiguous(name: string, tensor: Tensor): void {
  if (tensor.isContiguous) return;
  throw new DsError({
    code: 'DS_SHAPE',
    op: `checkpoint tensor "${name}"`,
    expected: 'a contiguous tensor',
    got: `strides [${tensor.strides.join(', ')}]`,
  });
}
