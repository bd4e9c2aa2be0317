// Reads thrown errors, and converts errors of system calls that any operation may meet: the working
// directory was deleted, or the process has no free file descriptor.
import { isAbsolute, resolve } from 'node:path';
import { DsError } from '../errors.js';
import { isObject } from './is-object.js';

/** Returns the message of a thrown value: of an error, else the value as text. */
export function errorMessage(thrown: unknown): string {
  return isObject(thrown) && typeof thrown.message === 'string' ? thrown.message : String(thrown);
}

/** Returns the code of a thrown error ("ENOENT"); undefined if it has none. */
export function errorCode(thrown: unknown): string | undefined {
  return isObject(thrown) && typeof thrown.code === 'string' ? thrown.code : undefined;
}

/** Returns DS_LIMIT or DS_IO for an error of a system call; null for any other error. */
export function systemError(error: unknown): DsError | null {
  if (!(error instanceof Error) || error instanceof DsError) return null;
  const { code = '', syscall, path, message } = error as NodeJS.ErrnoException;
  if (!syscall || !code) return null;
  if (syscall === 'uv_cwd') return noWorkingDirectoryError(error);
  const op = path === undefined ? syscall : `${syscall} ${path}`;
  if (code === 'EMFILE' || code === 'ENFILE') {
    const hint = 'Raise the limit, for example by `ulimit -n 65536`, or use fewer threads.';
    const expected = 'a free file descriptor';
    return new DsError({ code: 'DS_LIMIT', op, expected, got: message, hint, cause: error });
  }
  return new DsError({ code: 'DS_IO', op, expected: 'success', got: message, cause: error });
}

function noWorkingDirectoryError(cause: unknown): DsError {
  return new DsError({
    code: 'DS_IO',
    op: 'working directory',
    expected: 'an existing folder',
    got: 'a deleted folder',
    hint: 'Change to an existing folder, and start the program again.',
    cause,
  });
}

/** Returns the current folder. Throws DS_IO if it was deleted. */
export function workingDirectory(): string {
  try {
    return process.cwd();
  } catch (cause) {
    throw noWorkingDirectoryError(cause);
  }
}

/**
 * Returns the absolute form of a path. Throws DS_IO for a relative path if the current folder was
 * deleted.
 */
export const absolutePath = (path: string): string =>
  isAbsolute(path) ? resolve(path) : resolve(workingDirectory(), path);
