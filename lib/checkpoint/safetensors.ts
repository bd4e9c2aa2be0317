// One safetensors file: tensors streamed to it in order, and read back one at a time.
import { open } from 'node:fs/promises';
import { basename } from 'node:path';

import { DsError } from '../errors.js';
import { Buffer } from '../runtime/buffer.js';
import type { Device } from '../runtime/device.js';
import { dtypeSize } from '../runtime/dtype.js';
import { type HostRange, readFile, syncPath, writeFile } from '../runtime/file.js';
import { Event } from '../runtime/stream.js';
import { describe } from '../runtime/view.js';
import type { Tensor } from '../tensor/index.js';
import {
  encodeHeader,
  headerLength,
  PREFIX_BYTES,
  parseHeader,
  type TensorEntry,
} from './header.js';

/** A tensor to save; `shape` replaces the tensor's own where that is a flat view. */
export interface NamedTensor {
  name: string;
  /** On any device, or in pinned memory; contiguous. */
  tensor: Tensor;
  shape?: readonly number[];
}

/** What a manifest remembers of a file. */
export interface FileSum {
  bytes: number;
  /** CRC-32C of the whole file. */
  crc32c: number;
}

/** Device memory passes through pinned memory in pieces of this size. */
const STAGING_BYTES = 64 * 2 ** 20;

/**
 * Writes the tensors in the given order and returns when they are on disk. They must not change
 * meanwhile. Throws DS_IO.
 */
export async function writeSafetensors(
  path: string,
  tensors: readonly NamedTensor[],
): Promise<FileSum> {
  const table = tensors.map(({ name, tensor, shape }) => {
    requireContiguous(name, tensor);
    return { name, dtype: tensor.dtype, shape: shape ?? tensor.shape };
  });
  const writer = new StagedWriter(path, encodeHeader(table).bytes);
  try {
    for (const { tensor } of tensors) await writer.add(tensor);
    return await writer.finish();
  } finally {
    writer.dispose();
  }
}

/**
 * Collects host ranges and writes them together; device tensors are copied to staging memory first.
 */
class StagedWriter {
  private ranges: HostRange[] = [];
  private staging: Buffer | null = null;
  private used = 0;
  private offset = 0;
  private crc = 0;

  constructor(
    private readonly path: string,
    private head: Uint8Array,
  ) {}

  async add(tensor: Tensor): Promise<void> {
    const { buffer, bytes } = tensor;
    const from = tensor.offset * dtypeSize(tensor.dtype);
    if (isHost(buffer)) {
      this.ranges.push({ buffer, offset: from, bytes });
      return;
    }
    for (let done = 0; done < bytes; ) {
      this.staging ??= Buffer.allocatePinned(buffer.device, STAGING_BYTES);
      const count = Math.min(bytes - done, STAGING_BYTES - this.used);
      const range = { to: this.used, from: from + done, bytes: count };
      this.staging.copyFrom(buffer, range, buffer.device.compute);
      this.ranges.push({ buffer: this.staging, offset: this.used, bytes: count });
      this.used += count;
      done += count;
      if (this.used === STAGING_BYTES) await this.flush();
    }
  }

  async finish(): Promise<FileSum> {
    await this.flush();
    await syncPath(this.path);
    return { bytes: this.offset, crc32c: this.crc };
  }

  private async flush(): Promise<void> {
    if (this.staging) await passed(this.staging.device);
    const { offset, head, ranges, crc } = this;
    this.crc = await writeFile(this.path, { offset, head, ranges, crc });
    this.offset += head.length + ranges.reduce((sum, range) => sum + range.bytes, 0);
    this.head = new Uint8Array(0);
    this.ranges = [];
    this.used = 0;
  }

  dispose(): void {
    this.staging?.release();
  }
}

/** An open file whose header has been checked; tensor data is read when asked for. */
export class SafetensorsFile {
  private constructor(
    readonly path: string,
    private readonly dataStart: number,
    readonly entries: readonly TensorEntry[],
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
      return new SafetensorsFile(path, dataStart, entries);
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
    requireContiguous(entry.name, tensor);
    requireFit(entry, tensor, this.path);
    const at = this.dataStart + entry.start;
    const to = tensor.offset * dtypeSize(tensor.dtype);
    if (isHost(tensor.buffer)) {
      await readFile(this.path, at, { buffer: tensor.buffer, offset: to, bytes: tensor.bytes });
    } else {
      await this.readStaged(at, tensor.buffer, to, tensor.bytes);
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

/** Resolves when the device's compute stream has passed this point. */
async function passed(device: Device): Promise<void> {
  const event = new Event(device).record(device.compute);
  await event.reached();
  event.dispose();
}

function isHost(buffer: Buffer): boolean {
  return buffer.pinned || buffer.device.kind === 'cpu';
}

function requireContiguous(name: string, tensor: Tensor): void {
  if (tensor.isContiguous) return;
  throw new DsError({
    code: 'DS_SHAPE',
    op: `checkpoint tensor "${name}"`,
    expected: 'a contiguous tensor',
    got: `strides [${tensor.strides.join(', ')}]`,
  });
}

function requireFit(entry: TensorEntry, tensor: Tensor, path: string): void {
  const sameShape =
    entry.shape.length === tensor.ndim && entry.shape.every((n, d) => n === tensor.shape[d]);
  const isFlat = tensor.ndim === 1 && tensor.bytes === entry.end - entry.start;
  if (entry.dtype === tensor.dtype && (sameShape || isFlat)) return;
  throw new DsError({
    code: 'DS_CHECKPOINT',
    op: `${path}: ${entry.name}`,
    expected: describe(tensor),
    got: describe(entry),
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
