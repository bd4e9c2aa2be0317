// Starts the library's own threads, independent of the program's Node options.
import { extname, join } from 'node:path';
import { type ResourceLimits, Worker } from 'node:worker_threads';

import { DsError } from '../errors.js';

/**
 * Node's options of such threads: none, so that a program's preloads do not run in them. If the
 * library runs from its TypeScript sources, threads get the options of the process, because these
 * compile the sources.
 */
export const threadOptions: { execArgv?: string[] } =
  extname(__filename) === '.ts' ? {} : { execArgv: [] };

/**
 * Runs the module `name` of `folder` in a new thread. `data` is copied; shared memory stays shared.
 * A thread with a heap beyond `resourceLimits` ends, and the process continues.
 */
export function startThread(
  folder: string,
  name: string,
  data: object,
  resourceLimits?: ResourceLimits,
): Worker {
  const entry = join(folder, `${name}${extname(__filename)}`);
  return new Worker(entry, { ...threadOptions, workerData: data, resourceLimits });
}

/**
 * Converts a failure to start a thread of `op`: DS_LIMIT if the system refused it, DS_IO if the
 * working directory is gone, because Node then starts no thread. Returns other errors unchanged.
 */
export function startFailure(op: string, cause: unknown): unknown {
  const { code, message } = cause as NodeJS.ErrnoException;
  if (code === 'ERR_WORKER_INIT_FAILED') {
    return new DsError({
      code: 'DS_LIMIT',
      op,
      expected: 'a new thread',
      got: `none: ${message}`,
      cause,
      hint: 'Raise the limits of threads and open files (ulimit -u, ulimit -n), or of memory.',
    });
  }
  if (!message?.endsWith('uv_cwd')) return cause;
  return new DsError({
    code: 'DS_IO',
    op,
    expected: 'a working directory',
    got: 'a deleted folder',
    cause,
    hint: 'Node needs it to start a thread: call process.chdir() with an existing folder.',
  });
}
