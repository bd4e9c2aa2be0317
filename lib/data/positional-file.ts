// Reads a file by position. Files are not mapped, because Node cannot map them, and because the
// truncation of a mapped file kills the process with SIGBUS. Reads use the same page cache, and
// report truncation as an error.

import { closeSync, fstatSync, openSync, readSync } from 'node:fs';
import { finalizers } from '../runtime/finalizers.js';
import { dataError } from '../runtime/input-errors.js';
import { unreadableFileError } from './token-window.js';

/** A file. The first read opens it; close() or the garbage collector closes it. */
export class PositionalFile {
  private descriptor: number | null = null;

  constructor(readonly path: string) {}

  /** The current size in bytes. Throws DS_DATA if the path is not a file, or cannot be read. */
  get bytes(): number {
    try {
      const stat = fstatSync(this.open());
      if (stat.isFile()) return stat.size;
    } catch (cause) {
      throw unreadableFileError(this.path, cause);
    }
    throw dataError(this.path, 'a file', 'a folder or a device', 'Check the path.');
  }

  /** Reads `bytes` bytes from `position` on. Throws DS_DATA if the file is too short. */
  read(position: number, bytes: number): ArrayBuffer {
    const out = new Uint8Array(bytes);
    let done = 0;
    while (done < bytes) {
      const count = this.readSome(out, done, position + done);
      if (count === 0) {
        const hint = 'It was truncated: restore it, and keep it unchanged while it is read.';
        throw dataError(this.path, `${bytes} bytes at ${position}`, `its end after ${done}`, hint);
      }
      done += count;
    }
    return out.buffer;
  }

  close(): void {
    if (this.descriptor === null) return;
    fileFinalizers.unregister(this);
    closeSync(this.descriptor);
    this.descriptor = null;
  }

  private readSome(out: Uint8Array, offset: number, position: number): number {
    try {
      return readSync(this.open(), out, offset, out.length - offset, position);
    } catch (cause) {
      throw unreadableFileError(this.path, cause);
    }
  }

  private open(): number {
    if (this.descriptor !== null) return this.descriptor;
    try {
      this.descriptor = openSync(this.path, 'r');
    } catch (cause) {
      throw unreadableFileError(this.path, cause);
    }
    fileFinalizers.register(this, this.descriptor, this);
    return this.descriptor;
  }
}

const fileFinalizers = finalizers<number>((file) => closeSync(file));
