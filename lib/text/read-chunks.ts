// Reads a file in chunks, from a position on.
import { openSync, readSync } from 'node:fs';
import { dataError } from '../runtime/input-errors.js';
import { errorMessage } from '../runtime/system-error.js';

const CHUNK_BYTES = 1 << 20;

/** Opens a file; the caller closes it. Throws DS_DATA if it cannot be read. */
export function openFile(path: string): number {
  try {
    return openSync(path, 'r');
  } catch (cause) {
    throw dataError(path, 'a readable file', errorMessage(cause));
  }
}

/** Yields the bytes of a file from `at` on, in chunks with separate memory. */
export function* readChunks(file: number, at: number): Generator<Buffer> {
  for (let from = at; ; ) {
    const chunk = Buffer.allocUnsafe(CHUNK_BYTES);
    const count = readSync(file, chunk, 0, CHUNK_BYTES, from);
    if (count === 0) return;
    yield chunk.subarray(0, count);
    from += count;
  }
}
