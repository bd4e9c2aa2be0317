// Helpers of the attention cases: errors, and random operands.
import assert from 'node:assert/strict';
import { DsError } from '../../lib/errors.js';
import type { Device } from '../../lib/runtime/device.js';
import { numel } from '../../lib/runtime/view.js';
import { Tensor } from '../../lib/tensor/index.js';
import { generator } from '../autograd/check.js';

export const refuses = (code: string, message: RegExp, body: () => unknown): void =>
  assert.throws(
    body,
    (error: unknown) =>
      error instanceof DsError && error.code === code && message.test(error.message),
  );

/** Numbers in [-1, 1), the same for a name on every device. */
export function draw(name: string, shape: readonly number[], device: Device): Tensor {
  const random = generator(name);
  const values = Float32Array.from({ length: numel(shape) }, () => random() * 2 - 1);
  return Tensor.from(values, { shape, device });
}
