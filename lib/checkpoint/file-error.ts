// Failures of Node's own file calls, in the library's form.
import { DsError } from '../errors.js';

/** What helps, by the code of a file call. */
export const CURES: Readonly<Record<string, string>> = {
  ENOSPC: 'Free space on this file system, or choose another folder.',
  EDQUOT: 'Free space within the quota, or choose another folder.',
  EACCES: 'Check who owns the folder, and its permissions.',
  EPERM: 'Check who owns the folder, and its permissions.',
  EROFS: 'The file system is mounted read-only: choose another folder.',
  EMFILE: 'Too many files are open: raise `ulimit -n`.',
  EIO: 'The disk or network file system failed: see the system log.',
};

/** Codes of paths that lead nowhere. */
const NOWHERE: readonly (string | undefined)[] = ['ENOENT', 'ENOTDIR', 'ENAMETOOLONG', 'ELOOP'];

/** Whether a call failed because nothing is there or can be, not because it could not be read. */
export function leadsNowhere({ code, syscall }: NodeJS.ErrnoException): boolean {
  return NOWHERE.includes(code) || !syscall; // A path with a zero byte in it makes no system call.
}

/** What `body` gives; null where the path leads nowhere. Throws DS_IO. */
export async function ifThere<T>(path: string, body: () => Promise<T>): Promise<T | null> {
  try {
    return await body();
  } catch (error) {
    if (leadsNowhere(error as NodeJS.ErrnoException)) return null;
    throw asDsError(error, path);
  }
}

/**
 * Runs `body`; failures of Node's own file calls come out as DS_IO. `place` is named where they
 * name no path.
 */
export async function orDsError<T>(place: string, body: () => Promise<T>): Promise<T> {
  try {
    return await body();
  } catch (error) {
    throw asDsError(error, place);
  }
}

/** DS_IO for what a file call of Node threw; anything else unchanged. */
export function asDsError(error: unknown, place: string): unknown {
  const { code = '', syscall, path, message } = error as NodeJS.ErrnoException;
  if (error instanceof DsError || !syscall) return error;
  return new DsError({
    code: 'DS_IO',
    op: `${syscall} ${path ?? place}`,
    expected: 'success',
    got: message,
    hint: CURES[code] ?? '',
    cause: error,
  });
}
