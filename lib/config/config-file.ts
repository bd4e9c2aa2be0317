// Reads the text of a configuration file. It must be a regular file of bounded size.
import { closeSync, constants, fstatSync, openSync, readSync, type Stats } from 'node:fs';

/** Bytes of the longest text that is taken for a configuration. */
export const MAX_BYTES = 8 * 2 ** 20;

/** A file that exists and is not a configuration. */
export class UnfitFile extends Error {
  constructor(
    readonly expected: string,
    readonly got: string,
  ) {
    super(`expected ${expected}, got ${got}`);
  }
}

/**
 * The text of `file`, without a byte order mark. Opening never waits (for a writer of a pipe) and
 * reading ends at MAX_BYTES (of a device or of a file that grows). Throws UnfitFile, and errors of
 * the file system.
 */
export function readConfigText(file: string): string {
  const handle = openSync(file, constants.O_RDONLY | constants.O_NONBLOCK);
  try {
    const stats = fstatSync(handle);
    if (!stats.isFile()) throw new UnfitFile('a regular file', kindOf(stats));
    const bytes = readUpTo(handle, MAX_BYTES + 1);
    if (bytes.length > MAX_BYTES) {
      const size = stats.size > MAX_BYTES ? `${stats.size} bytes` : 'more';
      throw new UnfitFile(`a file of at most ${MAX_BYTES} bytes`, size);
    }
    return bytes.toString('utf8').replace(/^\uFEFF/, '');
  } finally {
    closeSync(handle);
  }
}

function readUpTo(handle: number, most: number): Buffer {
  const chunks: Buffer[] = [];
  for (let total = 0; total < most; ) {
    const chunk = Buffer.allocUnsafe(Math.min(most - total, 65536));
    const count = readSync(handle, chunk);
    if (count === 0) break;
    chunks.push(chunk.subarray(0, count));
    total += count;
  }
  return Buffer.concat(chunks);
}

function kindOf(stats: Stats): string {
  if (stats.isDirectory()) return 'a folder';
  if (stats.isFIFO()) return 'a pipe';
  return stats.isSocket() ? 'a socket' : 'a device';
}
