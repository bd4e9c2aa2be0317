// Writes host buffers to disk with the file engine, off the JavaScript thread; input-file.ts reads.
import { addon } from './addon.js';
import type { Buffer } from './buffer.js';
import { awaitNative, native } from './native.js';

/** A range of bytes of a buffer in host memory (pinned, or of the CPU device). */
export interface HostRange {
  buffer: Buffer;
  offset: number;
  bytes: number;
}

interface FileWrite {
  /** Byte offset in the file; 0 creates or empties the file. */
  offset: number;
  /** Bytes that are written first. */
  head?: Uint8Array;
  /**
   * Memory that is written after `head`, in order. It must not change until the promise settles.
   */
  ranges?: readonly HostRange[];
  /** The checksum so far. Default: 0. */
  crc?: number;
}

/** Resolves with the CRC-32C `crc` extended by the written bytes. Rejects with DS_IO. */
export function writeFile(path: string, write: FileWrite): Promise<number> {
  const { offset, head = new Uint8Array(0), ranges = [], crc = 0 } = write;
  const segments = new Float64Array(3 * ranges.length);
  ranges.forEach((range, i) => {
    segments.set([range.buffer.handle, range.offset, range.bytes], 3 * i);
  });
  return awaitNative(() => addon.writeFile(path, offset, head, segments, crc));
}

/** Resolves when a file's contents, or a folder's entries, are on disk. Rejects with DS_IO. */
export function syncPath(path: string): Promise<void> {
  return awaitNative(() => addon.syncPath(path));
}

/**
 * Renames atomically unless `to` exists; resolves with false if it exists. A file system without
 * this operation (NFS) may replace an empty folder that appears at the same moment. Rejects with
 * DS_IO.
 */
export function renameExclusive(from: string, to: string): Promise<boolean> {
  return awaitNative(() => addon.renameExclusive(from, to));
}

/**
 * Takes the lock (flock) of an open file without waiting; resolves with false if another open file
 * holds it. The kernel releases it when the descriptor is closed, even if the process is killed.
 * Rejects with DS_IO if the file system has no locks.
 */
export function lockFile(descriptor: number): Promise<boolean> {
  return awaitNative(() => addon.lockFile(descriptor));
}

/** The file I/O engine: io_uring if the kernel has and allows it, else threads. */
export type FileEngineName = 'io_uring' | 'threads';

export function fileEngineName(): FileEngineName {
  return native(() => addon.fileEngineName()) as FileEngineName;
}

/** Selects the engine of later calls. Throws DS_PLATFORM if io_uring does not work. */
export function setFileEngine(name: FileEngineName): void {
  native(() => addon.setFileEngine(name));
}
