// Reads new whole lines of a growing file in small blocks, so that the event loop never waits long.
import { type FileHandle, open } from 'node:fs/promises';
import { setImmediate as turn } from 'node:timers/promises';

/** Bytes of a block: about 2 ms of parsing. */
const BLOCK = 262_144;
/** Bytes of a line at most; a longer line is skipped. */
const LONGEST = 4 * 2 ** 20;
const NEWLINE = 10;

/** Receives a line without its newline, and the offset of its first byte. */
type OnLine = (line: string, offset: number) => void;

/**
 * Calls `onLine` for each whole line in the bytes [begin, end) of a file. Returns the offset behind
 * the last whole line; a torn last line stays for the next call. Rejects as node:fs does.
 */
export async function readLines(
  file: FileHandle,
  { begin, end }: { begin: number; end: number },
  onLine: OnLine,
): Promise<number> {
  const block = Buffer.allocUnsafe(BLOCK);
  let rest: Buffer[] = [];
  let restBytes = 0;
  let offset = begin; // Of the next block.
  let done = begin; // Behind the last whole line.
  while (offset < end) {
    const { bytesRead } = await file.read(block, 0, Math.min(BLOCK, end - offset), offset);
    if (bytesRead === 0) break;
    let start = 0;
    for (;;) {
      const newline = block.subarray(0, bytesRead).indexOf(NEWLINE, start);
      if (newline < 0) break;
      if (restBytes <= LONGEST) {
        const tail = block.subarray(start, newline);
        const bytes = restBytes > 0 ? Buffer.concat([...rest, tail]) : tail;
        onLine(bytes.toString('utf8'), done);
      }
      [rest, restBytes] = [[], 0];
      start = newline + 1;
      done = offset + start;
    }
    restBytes += bytesRead - start;
    // The bytes of a line that is too long are counted and not kept.
    if (restBytes <= LONGEST) rest.push(Buffer.from(block.subarray(start, bytesRead)));
    else rest = [];
    offset += bytesRead;
    await turn();
  }
  return done;
}

/** Follows a file that grows. A file that shrinks or is replaced is read again from its start. */
export class GrowingFile {
  private offset = 0;
  private identity = '';
  /** Bytes of the file at the last look. */
  size = 0;

  constructor(readonly path: string) {}

  /** Bytes that have been read. */
  get read(): number {
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
      // Progress counts while a large file is read.
      this.offset = await readLines(file, { begin, end: size }, (line, offset) => {
        this.offset = offset;
        onLine(line, offset);
      });
      return this.offset > begin;
    } finally {
      await file.close();
    }
  }

  /** Reads the lines of a part that was read before. */
  async again(part: { begin: number; end: number }, onLine: OnLine): Promise<void> {
    const file = await open(this.path, 'r');
    try {
      await readLines(file, part, onLine);
    } finally {
      await file.close();
    }
  }
}
