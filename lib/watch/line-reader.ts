// Reads new whole lines of a growing file in small blocks, which keeps the event loop responsive.

import { type FileHandle, open } from 'node:fs/promises';
import { waitForEventLoop } from '../runtime/event-loop.js';

/** Bytes of a block, about 2 ms of parsing. */
const BLOCK_BYTES = 262_144;
/** Maximum number of bytes of a line; longer lines are skipped. */
const MAX_LINE_BYTES = 4 * 2 ** 20;
const NEWLINE = 10;

/** Receives a line without its newline, and the offset of its first byte. */
type OnLine = (line: string, offset: number) => void;

/**
 * Calls `onLine` for each whole line in the bytes [begin, end) of a file. Returns the offset after
 * the last whole line; an incomplete last line stays for the next call. Rejects as node:fs does.
 */
async function readLines(
  file: FileHandle,
  { begin, end }: { begin: number; end: number },
  onLine: OnLine,
): Promise<number> {
  const block = Buffer.allocUnsafe(BLOCK_BYTES);
  let pending: Buffer[] = [];
  let pendingBytes = 0;
  let offset = begin; // Offset of the next block.
  let linesEnd = begin; // Offset after the last whole line.
  while (offset < end) {
    const { bytesRead } = await file.read(block, 0, Math.min(BLOCK_BYTES, end - offset), offset);
    if (bytesRead === 0) break;
    let start = 0;
    for (;;) {
      const newline = block.subarray(0, bytesRead).indexOf(NEWLINE, start);
      if (newline < 0) break;
      if (pendingBytes <= MAX_LINE_BYTES) {
        const tail = block.subarray(start, newline);
        const bytes = pendingBytes > 0 ? Buffer.concat([...pending, tail]) : tail;
        onLine(bytes.toString('utf8'), linesEnd);
      }
      [pending, pendingBytes] = [[], 0];
      start = newline + 1;
      linesEnd = offset + start;
    }
    pendingBytes += bytesRead - start;
    // The bytes of a too long line are counted but not kept.
    if (pendingBytes <= MAX_LINE_BYTES) pending.push(Buffer.from(block.subarray(start, bytesRead)));
    else pending = [];
    offset += bytesRead;
    await waitForEventLoop();
  }
  return linesEnd;
}

/** Follows a growing file. A file that shrinks or is replaced is read again from its start. */
export class GrowingFile {
  private offset = 0;
  private identity = '';
  /** Size of the file in bytes at the last update. */
  size = 0;

  constructor(readonly path: string) {}

  /** Number of bytes that have been read. */
  get bytesRead(): number {
    return this.offset;
  }

  /**
   * Reads new lines. `onRestart` is called before the lines of a file that shrank or was replaced.
   * Returns whether bytes were read. Rejects as node:fs does.
   */
  async update(onLine: OnLine, onRestart: () => void): Promise<boolean> {
    const file = await open(this.path, 'r');
    try {
      const { size, dev, ino } = await file.stat();
      const identity = `${dev}:${ino}`;
      if (size < this.offset || (this.identity !== '' && identity !== this.identity)) {
        this.offset = 0;
        onRestart();
      }
      this.identity = identity;
      this.size = size;
      const begin = this.offset;
      if (size === begin) return false;
      // Updates the progress while a large file is read.
      this.offset = await readLines(file, { begin, end: size }, (line, offset) => {
        this.offset = offset;
        onLine(line, offset);
      });
      return this.offset > begin;
    } finally {
      await file.close();
    }
  }

  /** Reads the lines of a part that has been read before. */
  async readAgain(part: { begin: number; end: number }, onLine: OnLine): Promise<void> {
    const file = await open(this.path, 'r');
    try {
      await readLines(file, part, onLine);
    } finally {
      await file.close();
    }
  }
}
