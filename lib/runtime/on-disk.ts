// What the system refuses of files and folders, as an error that names the place.
import { DsError } from '../errors.js';

/** What is wanted of the disk, in the words of an error. */
export interface Wanted {
  /** The file or folder, and who asks for it. */
  op: string;
  expected: string;
  hint?: string;
}

/** What `body` returns, which calls Node's own file functions. Throws DS_IO where they throw. */
export function onDisk<Result>(wanted: Wanted, body: () => Result): Result {
  try {
    return body();
  } catch (cause) {
    if (cause instanceof DsError) throw cause;
    throw new DsError({ code: 'DS_IO', ...wanted, got: (cause as Error).message, cause });
  }
}
