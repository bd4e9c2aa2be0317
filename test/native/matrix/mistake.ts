// Checks that wrong shapes, dtypes and indices throw a DsError with the op and the value.
import assert from 'node:assert/strict';
import { DsError, type DsErrorCode } from '../../../lib/errors.js';
import { Buffer } from '../../../lib/runtime/buffer.js';
import type { Device } from '../../../lib/runtime/device.js';
import { type DType, dtypeSize } from '../../../lib/runtime/dtype.js';
import { contiguousStrides, numel, type View } from '../../../lib/runtime/view.js';
import type { Case } from '../../support/case.js';

export type Make = (shape: readonly number[], dtype?: DType, strides?: readonly number[]) => View;

export interface Mistake {
  op: string;
  what: string;
  code: DsErrorCode;
  /** A part of the message: the wrong shape or dtype. */
  message: string;
  run(make: Make): void;
  cpuOnly?: string;
}

/** Runs the op on memory of 0xFF bytes: every index is -1. */
function check(mistake: Mistake, device: Device): void {
  const buffers: Buffer[] = [];
  const make: Make = (shape, dtype = 'f32', strides = contiguousStrides(shape)) => {
    const bytes = Math.max(1, numel(shape)) * dtypeSize(dtype) * 2;
    const buffer = Buffer.allocate(device, bytes);
    buffer.write(0, new Uint8Array(bytes).fill(0xff));
    buffers.push(buffer);
    return { buffer, dtype, shape, offset: 0, strides };
  };
  try {
    assert.throws(
      () => mistake.run(make),
      (error: unknown) => {
        assert.ok(error instanceof DsError, String(error));
        assert.equal(error.code, mistake.code, error.message);
        assert.equal(error.op, mistake.op, error.message);
        assert.ok(error.message.includes(mistake.message), error.message);
        return true;
      },
    );
  } finally {
    for (const buffer of buffers) buffer.release();
  }
}

export function mistakeCases(mistakes: readonly Mistake[]): Case[] {
  return mistakes.map((mistake) => ({
    name: `${mistake.op} refuses wrong ${mistake.what}`,
    run: (device) => check(mistake, device),
    skip: (device) => (device.kind === 'cpu' ? null : (mistake.cpuOnly ?? null)),
  }));
}
