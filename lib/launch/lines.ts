// Reads the lines of ranks from a stream.

import type { Readable } from 'node:stream';
import { required } from '../runtime/required.js';

export type StreamName = 'out' | 'err';

/** Takes the lines of ranks. */
export interface LineSink {
  line(rank: number, stream: StreamName, text: string): void;
  /** Ends the input: the sink writes all lines that it still holds. */
  end(): void;
}

/** Writes one line to a stream of this process. */
export type WriteLine = (stream: StreamName, text: string) => void;

/** A line without end is passed on in pieces of this many characters. */
const MAX_LINE = 1 << 16;

/** Calls `take` for each line of `stream`, without its newline. */
export function readLines(stream: Readable, take: (line: string) => void): void {
  let rest = '';
  stream.setEncoding('utf8');
  stream.on('data', (text: string) => {
    const lines = (rest + text).split('\n');
    rest = required(lines.pop());
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
