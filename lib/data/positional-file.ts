// Reads a file by position. Node cannot map files, and truncation of a mapped file ends the process
// with SIGBUS. Reads use the same page cache, and a short read is an error.

import { closeSync, fstatSync, openSync, readSync } from 'node:fs';
import { finalizers } from '../runtime/finalizers.js';
import { dataError } from '../runtime/input-errors.js';
import { unreadable } from './token-window.js';

/** Opened by the first read; closed by close(), or when the object is collected. */
export class PositionalFile {
  private file: number | null = null;

  constructor(readonly path: string) {}

  /** The size in bytes now. Throws DS_DATA. */
  get bytes(): number {
    try {
      const stat = fstatSync(this.open());
      if (stat.isFile()) return stat.size;
    } catch (cause) {
      throw unreadable(this.path, cause);
    }
    throw dataError(this.path, 'a file', 'a folder or a device', 'Check the path.');
  }

  /** `bytes` bytes from `position`. Throws DS_DATA if the file ends before. */
  read(position: number, bytes: number): ArrayBuffer {
    const into = new Uint8Array(bytes);
    let done = 0;
    while (done < bytes) {
      const count = this.readSome(into, done, position + done);
      if (count === 0) {
        const hint = 'It was truncated: restore it, and keep it unchanged while it is read.';
        throw dataError(this.path, `${bytes} bytes at ${position}`, `its end after ${done}`, hint);
      }
      done += count;
    }
    return into.buffer;
  }

  close(): void {
    if (this.file === null) return;
    forgotten.unregister(this);
    closeSync(this.file);
    this.file = null;
  }

  private readSome(into: Uint8Array, offset: number, position: number): number {
    try {
      return readSync(this.open(), into, offset, into.length - offset, position);
    } catch (cause) {
      throw unreadable(this.path, cause);
    }
  }

  private open(): number {
    if (this.file !== null) return this.file;
    try {
      this.file = openSync(this.path, 'r');
    } catch (cause) {
      throw unreadable(this.path, cause);
    }
    forgotten.register(this, this.file, this);
    return this.file;
  }
}

const forgotten = finalizers<number>((file) => closeSync(file));
