// Appends whole chunks to a file, so that a crash leaves a readable prefix.

import { closeSync, fstatSync, fsync, openSync, readSync, writeSync } from 'node:fs';
import { promisify } from 'node:util';
import { DsError } from '../errors.js';
import { makeFolderNow } from '../runtime/make-folder.js';
import { required } from '../runtime/required.js';
import { errorMessage } from '../runtime/system-error.js';

/** A file without a buffer in the process: appended data survives a crash of the process. */
export class AppendFile {
  /** Size of the file when it was opened. */
  readonly initialBytes: number;
  /** Last byte of the file when it was opened, or null if the file was empty. */
  readonly lastByte: number | null;
  private fd: number | null;

  /**
   * Opens or creates the file. `fresh`: throws if it exists. Throws DS_IO if it cannot be opened.
   */
  constructor(
    readonly path: string,
    { fresh = false } = {},
  ) {
    try {
      this.fd = openSync(path, fresh ? 'ax+' : 'a+');
      this.initialBytes = fstatSync(this.fd).size;
      const last = Buffer.alloc(1);
      const count = readSync(this.fd, last, 0, 1, Math.max(0, this.initialBytes - 1));
      this.lastByte = count === 1 ? required(last[0]) : null;
    } catch (cause) {
      throw ioError(path, cause);
    }
  }

  /** Appends `chunk`. Throws DS_IO; the file may then end with a part of `chunk`. */
  append(chunk: Uint8Array): void {
    const fd = this.requireOpen();
    try {
      for (let done = 0; done < chunk.length; ) done += writeSync(fd, chunk, done);
    } catch (cause) {
      throw ioError(this.path, cause);
    }
  }

  /** Resolves when all appended data is on the disk. */
  async sync(): Promise<void> {
    try {
      await promisify(fsync)(this.requireOpen());
    } catch (cause) {
      throw cause instanceof DsError ? cause : ioError(this.path, cause);
    }
  }

  close(): void {
    if (this.fd !== null) closeSync(this.fd);
    this.fd = null;
  }

  private requireOpen(): number {
    if (this.fd !== null) return this.fd;
    throw new DsError({
      code: 'DS_IO',
      op: this.path,
      expected: 'an open file',
      got: 'a closed file',
    });
  }
}

/** Creates `path` and its parent folders. Throws DS_IO if it cannot. */
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
    expected: 'a writable path',
    got: errorMessage(cause),
    hint: 'Check output_path and job_name, permissions and free space.',
    cause,
  });
}
