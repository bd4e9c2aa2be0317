// SafetensorsFile: checks the header of a safetensors file, then reads ranges of its tensors.

import { DsError } from '../errors.js';
import { Buffer } from '../runtime/buffer.js';
import { dtypeSize } from '../runtime/dtype.js';
import { InputFile } from '../runtime/input-file.js';
import { describe, numel } from '../runtime/view.js';
import type { Tensor } from '../tensor/index.js';
import {
  type FileMetadata,
  headerLength,
  PREFIX_BYTES,
  parseHeader,
  type TensorEntry,
} from './header.js';
import { afterCompute, isHost, requireContiguous, STAGING_BYTES } from './staging.js';

/** Elements of an entry from index `from` on become elements of a tensor from index `to` on. */
interface ReadRange {
  from: number;
  to: number;
  numel: number;
}

/** An open safetensors file. The caller of open() or of() closes it. */
export class SafetensorsFile {
  private constructor(
    private readonly file: InputFile,
    private readonly dataStart: number,
    /** The tensors, in the order of their bytes. */
    readonly entries: readonly TensorEntry[],
    /** Texts that the file contains in addition to its tensors, by name. */
    readonly metadata: FileMetadata,
  ) {}

  /**
   * Opens a file and checks its header. `hasCodes`: whether tensors may have the dtype of codes
   * (header.ts). Throws DS_CHECKPOINT for an invalid header, DS_IO if the file cannot be read.
   */
  static async open(path: string, hasCodes = false): Promise<SafetensorsFile> {
    return SafetensorsFile.of(await InputFile.open(path), hasCodes);
  }

  /**
   * Checks the header of an open file. Takes ownership of `file`: close() closes it, and a failure
   * of of() also does. See open().
   */
  static async of(file: InputFile, hasCodes = false): Promise<SafetensorsFile> {
    const { path, bytes } = file;
    try {
      const prefix = await file.slice(0, Math.min(PREFIX_BYTES, bytes));
      const length = headerLength(prefix, bytes, path);
      const dataStart = PREFIX_BYTES + length;
      const json = await file.slice(PREFIX_BYTES, length);
      const { entries, metadata } = parseHeader(json, bytes - dataStart, path, hasCodes);
      return new SafetensorsFile(file, dataStart, entries, metadata);
    } catch (error) {
      await file.close();
      throw error;
    }
  }

  get path(): string {
    return this.file.path;
  }

  get bytes(): number {
    return this.file.bytes;
  }

  /** Throws DS_IO if the file was written since it was opened. */
  requireUnchanged(): Promise<void> {
    return this.file.requireUnchanged();
  }

  close(): Promise<void> {
    return this.file.close();
  }

  /**
   * Overwrites `tensor` with the values of an entry. `tensor` is contiguous, on any device, has the
   * entry's dtype, and has the entry's shape or is flat. Throws DS_CHECKPOINT if dtype or shape
   * differ.
   */
  async readInto(entry: TensorEntry, tensor: Tensor): Promise<void> {
    requireFit(entry, tensor, this.path);
    await this.readRange(entry, { from: 0, to: 0, numel: tensor.numel }, tensor);
  }

  /**
   * Overwrites a range of `tensor`, which is contiguous. Throws DS_SHAPE if it is not contiguous,
   * DS_IO if the read fails. Throws DS_CHECKPOINT if its dtype differs, or if the range exceeds the
   * entry or the tensor.
   */
  async readRange(entry: TensorEntry, range: ReadRange, tensor: Tensor): Promise<void> {
    requireContiguous(entry.name, tensor);
    requireRange(entry, range, tensor, this.path);
    const size = dtypeSize(entry.dtype);
    const at = this.dataStart + entry.start + range.from * size;
    const to = (tensor.offset + range.to) * size;
    const bytes = range.numel * size;
    if (bytes === 0) return;
    if (isHost(tensor.buffer)) {
      await this.file.read(at, { buffer: tensor.buffer, offset: to, bytes });
    } else {
      await this.readStaged(at, tensor.buffer, to, bytes);
    }
  }

  /**
   * Fills `bytes` with the bytes of an entry from byte `from` on. Blocks the thread. Throws DS_IO
   * if the file cannot be read.
   */
  readNow(entry: TensorEntry, from: number, bytes: Uint8Array): void {
    this.file.readNow(this.dataStart + entry.start + from, bytes);
  }

  private async readStaged(at: number, target: Buffer, to: number, bytes: number): Promise<void> {
    const { device } = target;
    const staging = Buffer.allocatePinned(device, Math.min(bytes, STAGING_BYTES));
    try {
      for (let done = 0; done < bytes; ) {
        const count = Math.min(bytes - done, STAGING_BYTES);
        await this.file.read(at + done, { buffer: staging, offset: 0, bytes: count });
        target.copyFrom(staging, { to: to + done, bytes: count }, device.compute);
        await afterCompute(device);
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
  throw mismatchError(`${path}: ${entry.name}`, describe(tensor), describe(entry));
}

function requireRange(entry: TensorEntry, range: ReadRange, tensor: Tensor, path: string): void {
  const { from, to, numel: count } = range;
  const location = `${path}: ${entry.name}`;
  if (entry.dtype !== tensor.dtype) throw mismatchError(location, tensor.dtype, entry.dtype);
  const saved = numel(entry.shape);
  if (from >= 0 && to >= 0 && from + count <= saved && to + count <= tensor.numel) return;
  throw mismatchError(location, `elements ${from} to ${from + count}`, `${saved} elements`);
}

function mismatchError(op: string, expected: string, got: string): DsError {
  return new DsError({
    code: 'DS_CHECKPOINT',
    op,
    expected,
    got,
    hint: 'The file belongs to another model, or has another precision.',
  });
}
