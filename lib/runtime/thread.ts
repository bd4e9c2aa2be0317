// Starting threads of the library's own, whatever the program was started with.
import { extname, join } from 'node:path';
import { Worker } from 'node:worker_threads';

/**
 * Node's options of such threads: none, so that a program's own preloads do not run in them; those
 * of the process where the library runs from its TypeScript sources, which something there must
 * compile.
 */
export const threadOptions: { execArgv?: string[] } =
  extname(__filename) === '.ts' ? {} : { execArgv: [] };

/**
 * Runs the module `name` of `folder` in a thread of its own; `data` is copied, or shared where it
 * can be.
 */
export function startThread(folder: string, name: string, data: object): Worker {
  const entry = join(folder, `${name}${extname(__filename)}`);
  return new Worker(entry, { ...threadOptions, workerData: data });
}
