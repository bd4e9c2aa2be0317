// Writes tensors to safetensors files in order, with two staging buffers as additional memory.

import { Buffer } from '../runtime/buffer.js';
import { type DType, dtypeSize } from '../runtime/dtype.js';
import { type HostRange, syncPath, writeFile } from '../runtime/file.js';
import { required } from '../runtime/required.js';
import type { Tensor } from '../tensor/index.js';
import { encodeHeader, type FileMetadata } from './header.js';
import { isRemote, partsOf, type Remote } from './shard.js';
import { afterCompute, isHost, requireContiguous, STAGING_BYTES } from './staging.js';

/** A tensor to save. */
export interface TensorSource {
  name: string;
  dtype: DType;
  /** Shape in the file. `values` may be flat. */
  shape: readonly number[];
  /**
   * The values: a contiguous tensor on any device or in pinned memory. A function is called when
   * its tensor is written; the writer releases the result. Remote values are read in parts.
   */
  values: Tensor | Remote | (() => Promise<Tensor>);
}

/** Size and checksum of a file, for the manifest. */
export interface FileSum {
  bytes: number;
  /** CRC-32C of the whole file. */
  crc32c: number;
}

/**
 * Writes a new file with the tensors in order. Resolves after the file is on disk. The tensors must
 * not change until the promise settles. Throws DS_IO if the file cannot be written.
 */
export async function writeSafetensors(
  path: string,
  tensors: readonly TensorSource[],
  metadata: FileMetadata = {},
): Promise<FileSum> {
  const writer = new Writer(path, encodeHeader(tensors, metadata).bytes);
  try {
    for (const { name, values } of tensors) {
      if (typeof values !== 'function' && isRemote(values)) {
        await writer.addRemote(values);
        continue;
      }
      const isComputed = typeof values === 'function';
      const tensor = isComputed ? await values() : values;
      try {
        requireContiguous(name, tensor);
        await writer.add(tensor);
        if (isComputed) await writer.drain();
      } finally {
        if (isComputed) tensor.release();
      }
    }
    return await writer.finish();
  } finally {
    await writer.dispose();
  }
}

/**
 * Writes the values of one tensor at byte `offset` of an existing file. Throws DS_IO if the file
 * cannot be written.
 */
export async function writeAt(
  path: string,
  offset: number,
  name: string,
  values: Tensor | Remote,
): Promise<void> {
  const writer = new Writer(path, new Uint8Array(0), offset);
  try {
    if (isRemote(values)) await writer.addRemote(values);
    else {
      requireContiguous(name, values);
      await writer.add(values);
    }
    await writer.drain();
  } finally {
    await writer.dispose();
  }
}

/**
 * Writes tensors to a file one after another. Host memory is written directly. Device memory is
 * copied to two staging buffers in turn: one is filled while the other is written.
 */
class Writer {
  private ranges: HostRange[] = [];
  private readonly staging: Buffer[] = [];
  /** Index of the staging buffer that is being filled. */
  private filling = 0;
  private used = 0;
  private crc = 0;
  private writing: Promise<void> = Promise.resolve();

  constructor(
    private readonly path: string,
    private head: Uint8Array,
    private offset = 0,
  ) {}

  async add(tensor: Tensor): Promise<void> {
    const { buffer, bytes } = tensor;
    const from = tensor.offset * dtypeSize(tensor.dtype);
    if (isHost(buffer)) {
      if (bytes > 0) this.ranges.push({ buffer, offset: from, bytes });
      return;
    }
    for (let done = 0; done < bytes; ) {
      this.staging[this.filling] ??= Buffer.allocatePinned(buffer.device, STAGING_BYTES);
      const stage = required(this.staging[this.filling]);
      const count = Math.min(bytes - done, STAGING_BYTES - this.used);
      const range = { to: this.used, from: from + done, bytes: count };
      stage.copyFrom(buffer, range, buffer.device.compute);
      this.ranges.push({ buffer: stage, offset: this.used, bytes: count });
      this.used += count;
      done += count;
      if (this.used === STAGING_BYTES) await this.flush();
    }
  }

  /** Reads the parts of remote values one by one. Each is written while the next is read. */
  async addRemote(values: Remote): Promise<void> {
    let before: Tensor | null = null;
    try {
      for (const [offset, numel] of partsOf(values)) {
        const part = values.borrow(offset, numel);
        try {
          await part.arrived();
          await this.add(part.tensor);
          await this.flush();
        } finally {
          before?.release();
          before = part.tensor;
        }
      }
      await this.writing;
    } finally {
      await this.writing.catch(() => {});
      before?.release();
    }
  }

  /** Resolves after all added tensors are written to the file. */
  async drain(): Promise<void> {
    await this.flush();
    await this.writing;
  }

  async finish(): Promise<FileSum> {
    await this.drain();
    await syncPath(this.path);
    return { bytes: this.offset, crc32c: this.crc };
  }

  /** Waits for the running write, then starts a write of the ranges that were added since. */
  private async flush(): Promise<void> {
    const stage = this.staging[this.filling];
    if (stage) await afterCompute(stage.device);
    await this.writing;
    this.writing = this.write(this.head, this.ranges);
    this.writing.catch(() => {}); // The next await of `writing` receives the rejection.
    this.head = new Uint8Array(0);
    this.ranges = [];
    this.used = 0;
    this.filling = 1 - this.filling;
  }

  private async write(head: Uint8Array, ranges: readonly HostRange[]): Promise<void> {
    const { offset, crc } = this;
    if (offset > 0 && ranges.length === 0) return;
    this.crc = await writeFile(this.path, { offset, head, ranges, crc });
    this.offset += head.length + ranges.reduce((sum, range) => sum + range.bytes, 0);
  }

  /** Waits for the running write, then frees the staging buffers. Never rejects. */
  async dispose(): Promise<void> {
    await this.writing.catch(() => {});
    for (const stage of this.staging) stage?.release();
  }
}
