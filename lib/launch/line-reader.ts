// A stream of text as lines, whole ones as they come and the last one at the end.
import type { Readable } from 'node:stream';

/** A line without end is passed on in pieces of this many characters. */
const MAX_LINE = 1 << 16;

/** Calls `take` for each line of `stream`, without its newline. */
export function readLines(stream: Readable, take: (line: string) => void): void {
  let rest = '';
  stream.setEncoding('utf8');
  stream.on('data', (text: string) => {
    const lines = (rest + text).split('\n');
    rest = lines.pop() as string;
    for (const line of lines) take(line);
    if (rest.length > MAX_LINE) {
      take(rest);
      rest = '';
    }
  });
  stream.on('error', () => {});
  stream.on('close', () => {
    if (rest !== '') take(rest);
    rest = '';
  });
}
