// Reading safetensors: a file whose header has been checked, and ranges of its tensors when asked for.
import { open } from 'node:fs/promises';
import { basename } from 'node:path';

import { DsError } from '../errors.js';
import { Buffer } from '../runtime/buffer.js';
import { dtypeSize } from '../runtime/dtype.js';
import { readFile } from '../runtime/file.js';
import { describe, numel } from '../runtime/view.js';
import type { Tensor } from '../tensor/index.js';
import { headerLength, PREFIX_BYTES, parseHeader, type TensorEntry } from './header.js';
import { isHost, passed, requireContiguous, STAGING_BYTES } from './staging.js';

/** Elements [from, from + numel) of an entry go to the elements of a tensor from `to`. */
export interface ReadRange {
  from: number;
  to: number;
  numel: number;
}

export class SafetensorsFile {
  private constructor(
    readonly path: string,
    private readonly dataStart: number,
    /** In the order of their bytes. */
    readonly entries: readonly TensorEntry[],
    readonly bytes: number,
  ) {}

  /**
   * Throws DS_CHECKPOINT for a header that is not well formed, DS_IO when the file cannot be read.
   */
  static async open(path: string): Promise<SafetensorsFile> {
    const name = basename(path);
    const file = await open(path, 'r').catch((cause: Error) => {
      throw unreadable(path, cause);
    });
    try {
      const { size } = await file.stat();
      const prefix = await file.read(new Uint8Array(PREFIX_BYTES), 0, PREFIX_BYTES, 0);
      const length = headerLength(prefix.buffer.subarray(0, prefix.bytesRead), size, name);
      const { buffer } = await file.read(new Uint8Array(length), 0, length, PREFIX_BYTES);
      const dataStart = PREFIX_BYTES + length;
      const entries = parseHeader(buffer, size - dataStart, name);
      return new SafetensorsFile(path, dataStart, entries, size);
    } finally {
      await file.close();
    }
  }

  /**
   * Overwrites `tensor` (contiguous, on any device) with the saved values of one of `entries`. It
   * has the saved dtype and shape, or is flat with as many elements. Throws DS_CHECKPOINT when it
   * has not.
   */
  async readInto(entry: TensorEntry, tensor: Tensor): Promise<void> {
    requireFit(entry, tensor, this.path);
    await this.readRange(entry, { from: 0, to: 0, numel: tensor.numel }, tensor);
  }

  /** Overwrites part of `tensor`, which is contiguous and of the entry's dtype. Both ranges lie inside. */
  async readRange(entry: TensorEntry, range: ReadRange, tensor: Tensor): Promise<void> {
    requireContiguous(entry.name, tensor);
    requireRange(entry, range, tensor, this.path);
    const size = dtypeSize(entry.dtype);
    const at = this.dataStart + entry.start + range.from * size;
    const to = (tensor.offset + range.to) * size;
    const bytes = range.numel * size;
    if (bytes === 0) return;
    if (isHost(tensor.buffer)) {
      await readFile(this.path, at, { buffer: tensor.buffer, offset: to, bytes });
    } else {
      await this.readStaged(at, tensor.buffer, to, bytes);
    }
  }

  private async readStaged(at: number, target: Buffer, to: number, bytes: number): Promise<void> {
    const { device } = target;
    const staging = Buffer.allocatePinned(device, Math.min(bytes, STAGING_BYTES));
    try {
      for (let done = 0; done < bytes; ) {
        const count = Math.min(bytes - done, STAGING_BYTES);
        await readFile(this.path, at + done, { buffer: staging, offset: 0, bytes: count });
        target.copyFrom(staging, { to: to + done, bytes: count }, device.compute);
        await passed(device);
        done += count;
      }
    } finally {
      staging.release();
    }
  }
}

function requireFit(entry: TensorEntry, tensor: Tensor, path: string): void {
  const sameShape =
    entry.shape.length === tensor.ndim && entry.shape.every((n, d) => n === tensor.shape[d]);
  const isFlat = tensor.ndim === 1 && tensor.bytes === entry.end - entry.start;
  if (entry.dtype === tensor.dtype && (sameShape || isFlat)) return;
  throw mismatch(`${path}: ${entry.name}`, describe(tensor), describe(entry));
}

function requireRange(entry: TensorEntry, range: ReadRange, tensor: Tensor, path: string): void {
  const { from, to, numel: count } = range;
  const place = `${path}: ${entry.name}`;
  if (entry.dtype !== tensor.dtype) throw mismatch(place, tensor.dtype, entry.dtype);
  const saved = numel(entry.shape);
  if (from >= 0 && to >= 0 && from + count <= saved && to + count <= tensor.numel) return;
  throw mismatch(place, `elements ${from} to ${from + count}`, `${saved} of them`);
}

function mismatch(op: string, expected: string, got: string): DsError {
  return new DsError({
    code: 'DS_CHECKPOINT',
    op,
    expected,
    got,
    hint: 'It was saved from another model or with another precision.',
  });
}

function unreadable(path: string, cause: Error): DsError {
  return new DsError({
    code: 'DS_IO',
    op: `open ${path}`,
    expected: 'a readable file',
    got: cause.message,
    cause,
  });
}
