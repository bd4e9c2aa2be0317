// Converts errors of Node's file calls to DS_IO.
import { DsError } from '../errors.js';

/** Hints by error code of the operating system. */
export const HINTS: Readonly<Record<string, string>> = {
  ENOSPC: 'Free space on this file system, or choose another folder.',
  EDQUOT: 'Free space within the quota, or choose another folder.',
  EACCES: 'Check the owner and the permissions of the folder.',
  EPERM: 'Check the owner and the permissions of the folder.',
  EROFS: 'The file system is mounted read-only: choose another folder.',
  EMFILE: 'Too many files are open: raise `ulimit -n`.',
  EIO: 'The disk or network file system failed: see the system log.',
};

/** Error codes of a path that does not exist. */
const NOWHERE: readonly (string | undefined)[] = ['ENOENT', 'ENOTDIR', 'ENAMETOOLONG', 'ELOOP'];

/**
 * Returns whether a file call failed because its path does not exist or cannot exist. Other
 * failures, such as a read error, return false.
 */
export function isMissingPath({ code, syscall }: NodeJS.ErrnoException): boolean {
  // Node rejects a path with a zero byte before any system call.
  return NOWHERE.includes(code) || !syscall;
}

/**
 * Returns the result of `body`, or null if the path does not exist. Throws DS_IO for other errors.
 */
export async function ifThere<T>(path: string, body: () => Promise<T>): Promise<T | null> {
  try {
    return await body();
  } catch (error) {
    if (isMissingPath(error as NodeJS.ErrnoException)) return null;
    throw asDsError(error, path);
  }
}

/**
 * Runs `body` and converts errors of Node's file calls to DS_IO. The error names the path of the
 * failed call, or `location` for a call without a path.
 */
export async function orDsError<T>(location: string, body: () => Promise<T>): Promise<T> {
  try {
    return await body();
  } catch (error) {
    throw asDsError(error, location);
  }
}

/** Returns DS_IO for an error of a Node file call; returns other errors unchanged. */
export function asDsError(error: unknown, location: string): unknown {
  const { code = '', syscall, path, message } = error as NodeJS.ErrnoException;
  if (error instanceof DsError || !syscall) return error;
  return new DsError({
    code: 'DS_IO',
    op: `${syscall} ${path ?? location}`,
    expected: 'success',
    got: message,
    hint: HINTS[code] ?? '',
    cause: error,
  });
}
