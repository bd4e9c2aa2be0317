// A file that only grows: whole chunks are appended at once, so that a crash leaves a readable
// prefix.
import { closeSync, fstatSync, fsync, openSync, readSync, writeSync } from 'node:fs';
import { promisify } from 'node:util';

import { DsError } from '../errors.js';
import { makeFolderNow } from '../runtime/make-folder.js';

/** Nothing is buffered in the process: what append() returned from outlives it. */
export class AppendFile {
  /** Bytes that the file held when it was opened. */
  readonly initialBytes: number;
  /** The last of them; null where there was none. */
  readonly lastByte: number | null;
  private fd: number | null;

  /** Opens the file, or creates it; `fresh` insists on a new one. Throws DS_IO. */
  constructor(
    readonly path: string,
    { fresh = false } = {},
  ) {
    try {
      this.fd = openSync(path, fresh ? 'ax+' : 'a+');
      this.initialBytes = fstatSync(this.fd).size;
      const last = Buffer.alloc(1);
      const count = readSync(this.fd, last, 0, 1, Math.max(0, this.initialBytes - 1));
      this.lastByte = count === 1 ? (last[0] as number) : null;
    } catch (cause) {
      throw ioError(path, cause);
    }
  }

  /** Throws DS_IO; the file may then end in a part of `chunk`. */
  append(chunk: Uint8Array): void {
    const fd = this.open();
    try {
      for (let done = 0; done < chunk.length; ) done += writeSync(fd, chunk, done);
    } catch (cause) {
      throw ioError(this.path, cause);
    }
  }

  /** Resolves when the disk has everything. */
  async sync(): Promise<void> {
    try {
      await promisify(fsync)(this.open());
    } catch (cause) {
      throw cause instanceof DsError ? cause : ioError(this.path, cause);
    }
  }

  close(): void {
    if (this.fd !== null) closeSync(this.fd);
    this.fd = null;
  }

  private open(): number {
    if (this.fd !== null) return this.fd;
    throw new DsError({
      code: 'DS_IO',
      op: this.path,
      expected: 'an open file',
      got: 'one that was closed',
    });
  }
}

/** Creates `path` and what lies above it. Throws DS_IO. */
export function makeFolder(path: string): void {
  try {
    makeFolderNow(path);
  } catch (cause) {
    throw ioError(path, cause);
  }
}

function ioError(path: string, cause: unknown): DsError {
  return new DsError({
    code: 'DS_IO',
    op: path,
    expected: 'a place to write to',
    got: (cause as Error).message,
    hint: 'Check output_path and job_name, permissions and free space.',
    cause,
  });
}
