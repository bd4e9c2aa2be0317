// A file that stays open for reading: all reads get the same bytes, even if another file takes its
// name.

import {
  type BigIntStats,
  close,
  closeSync,
  constants,
  fstat,
  fstatSync,
  open,
  read,
  readSync,
} from 'node:fs';
import { DsError } from '../errors.js';
import { addon } from './addon.js';
import type { HostRange } from './file.js';
import { finalizers } from './finalizers.js';
import { awaitNative } from './native.js';
import { required } from './required.js';
import { errorCode } from './system-error.js';

/** An open file. The caller of open() closes it; otherwise its garbage collection does. */
export class InputFile {
  private constructor(
    readonly path: string,
    /** Size when the file was opened. */
    readonly bytes: number,
    private descriptor: number | null,
    /** Time of the last write in nanoseconds: it changes with the contents. */
    private readonly written: bigint,
  ) {
    forgotten.register(this, required(descriptor), this);
  }

  /**
   * Throws DS_IO with the cause: no such file, no permission, not a regular file (a pipe would
   * hang), or a symbolic link unless `followLinks`.
   */
  static async open(path: string, { followLinks = true } = {}): Promise<InputFile> {
    const { O_RDONLY, O_NONBLOCK, O_NOFOLLOW } = constants;
    const flags = O_RDONLY | O_NONBLOCK | (followLinks ? 0 : O_NOFOLLOW);
    const descriptor = await promisify<number>('open', path, (done) => open(path, flags, done));
    try {
      const status = await statusOf(descriptor, path);
      if (!status.isFile()) throw notRegularError(path, status);
      return new InputFile(path, Number(status.size), descriptor, status.mtimeNs);
    } catch (error) {
      close(descriptor, () => {}); // A failed close is less useful than the first error.
      throw error;
    }
  }

  /**
   * Fills the range with bytes of the file from `offset` on, by the file engine. Rejects with DS_IO
   * if the file ends earlier or cannot be read, with DS_BOUNDS for a range outside its buffer.
   */
  read(offset: number, { buffer, bytes, offset: to }: HostRange): Promise<void> {
    return awaitNative(async () => {
      await addon.readFile(this.open(), this.path, offset, bytes, buffer.handle, to);
    });
  }

  /** Returns the CRC-32C of the whole file. Throws DS_IO if it cannot be read. */
  checksum(): Promise<number> {
    return awaitNative(async () => addon.checksumFile(this.open(), this.path));
  }

  /** Resolves with `bytes` bytes from `offset`. Throws DS_IO, also if the file ends earlier. */
  async slice(offset: number, bytes: number): Promise<Uint8Array> {
    const into = new Uint8Array(bytes);
    for (let done = 0; done < bytes; ) {
      const file = this.open();
      const count = await promisify<number>('read', this.path, (callback) =>
        read(file, into, done, bytes - done, offset + done, callback),
      );
      if (count === 0) throw fileError('read', this.path, `${bytes} bytes at ${offset}`, 'its end');
      done += count;
    }
    return into;
  }

  /**
   * Fills `into` from `offset` on and blocks until the data is there. Throws DS_IO, also if the
   * file ends earlier, or was written to since it was opened.
   */
  readNow(offset: number, into: Uint8Array): void {
    const file = this.open();
    for (let done = 0; done < into.length; ) {
      const count = reportedNow('read', this.path, () =>
        readSync(file, into, done, into.length - done, offset + done),
      );
      if (count === 0)
        throw fileError('read', this.path, `${into.length} bytes at ${offset}`, 'its end');
      done += count;
    }
    this.requireSame(reportedNow('stat', this.path, () => fstatSync(file, { bigint: true })));
  }

  /**
   * Resolves with the whole file, of at most `limit` bytes, as UTF-8 text. Throws DS_IO if it is
   * larger, or cannot be read.
   */
  async text(limit: number): Promise<string> {
    const { path, bytes } = this;
    if (bytes > limit) throw fileError('read', path, `at most ${limit} bytes`, `${bytes}`);
    return new TextDecoder().decode(await this.slice(0, this.bytes));
  }

  /**
   * Throws DS_IO if the file was written to since it was opened. Its name may belong to another
   * file by now.
   */
  async requireUnchanged(): Promise<void> {
    this.requireSame(await statusOf(this.open(), this.path));
  }

  private requireSame({ size, mtimeNs }: BigIntStats): void {
    if (Number(size) === this.bytes && mtimeNs === this.written) return;
    const hint = 'Another program writes to it: load again when it is done.';
    throw fileError('read', this.path, 'a file without concurrent writes', 'a change', { hint });
  }

  /** Closes the file. Idempotent. */
  async close(): Promise<void> {
    const { descriptor } = this;
    if (descriptor === null) return;
    this.descriptor = null;
    forgotten.unregister(this);
    // The file was only read, so a failed close loses no data.
    await new Promise<void>((resolve) => close(descriptor, () => resolve()));
  }

  private open(): number {
    if (this.descriptor !== null) return this.descriptor;
    throw fileError('read', this.path, 'a file that is still open', 'a closed file');
  }
}

const forgotten = finalizers<number>((descriptor) => closeSync(descriptor));

type Callback<T> = (error: Error | null, value: T) => void;

/**
 * Returns a promise of the result that `start` passes to its callback. Rejects with DS_IO for its
 * error.
 */
function promisify<T>(
  operation: string,
  path: string,
  start: (done: Callback<T>) => void,
): Promise<T> {
  return new Promise((resolve, reject) => {
    const callback: Callback<T> = (cause, value) => {
      if (!cause) resolve(value);
      else reject(fileError(operation, path, 'a readable file', cause.message, { cause }));
    };
    try {
      start(callback);
    } catch (cause) {
      callback(cause as Error, undefined as T); // Node throws for a path with a zero byte.
    }
  });
}

/** Returns the result of `call`, a synchronous Node function. Throws DS_IO for its error. */
function reportedNow<T>(operation: string, path: string, call: () => T): T {
  try {
    return call();
  } catch (error) {
    const cause = error as Error;
    throw fileError(operation, path, 'a readable file', cause.message, { cause });
  }
}

function statusOf(descriptor: number, path: string): Promise<BigIntStats> {
  return promisify('stat', path, (done) => fstat(descriptor, { bigint: true }, done));
}

function notRegularError(path: string, status: BigIntStats): DsError {
  const kind = status.isDirectory() ? 'a folder' : status.isFIFO() ? 'a pipe' : 'a device';
  return fileError('open', path, 'a regular file', kind);
}

function fileError(
  operation: string,
  path: string,
  expected: string,
  got: string,
  rest: { hint?: string; cause?: Error } = {},
): DsError {
  const hint = rest.hint ?? cures[errorCode(rest.cause) ?? ''];
  return new DsError({ code: 'DS_IO', op: `${operation} ${path}`, expected, got, ...rest, hint });
}

/** The hints of native calls: csrc/io/file.cc. */
const cures: Record<string, string> = {
  EACCES: 'Check who owns the file and its folder, and their permissions.',
  EMFILE: 'Too many files are open: raise `ulimit -n`.',
  ENFILE: 'Too many files are open: raise `ulimit -n`.',
  EIO: 'The disk or network file system failed: see the system log.',
};
