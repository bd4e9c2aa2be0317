// Converts system errors of files and folders into errors that name the path.

import { DsError } from '../errors.js';
import { errorMessage } from './system-error.js';

/** The path and the expectation of a disk operation, for errors. */
export interface DiskOperation {
  /** The operation's file or folder and caller. */
  op: string;
  expected: string;
  hint?: string;
}

/**
 * Returns the result of `body`, which calls Node's file functions. Throws DS_IO for their errors.
 */
export function onDisk<Result>(operation: DiskOperation, body: () => Result): Result {
  try {
    return body();
  } catch (cause) {
    if (cause instanceof DsError) throw cause;
    throw new DsError({ code: 'DS_IO', ...operation, got: errorMessage(cause), cause });
  }
}
