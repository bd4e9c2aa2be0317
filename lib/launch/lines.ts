// Reads lines from a stream.

import type { Readable } from 'node:stream';
import { required } from '../runtime/required.js';

export type StreamName = 'out' | 'err';

/** Receives the lines of ranks. */
export interface LineSink {
  line(rank: number, stream: StreamName, text: string): void;
  /** Ends the input: the sink writes its remaining lines. */
  end(): void;
}

/** Writes one line to a stream of this process. */
export type WriteLine = (stream: StreamName, text: string) => void;

/** Maximum number of characters of a line; a longer line is split. */
const MAX_LINE = 1 << 16;

/** Calls `take` with each line of `stream`, without its newline. */
export function readLines(stream: Readable, take: (line: string) => void): void {
  let pending = '';
  stream.setEncoding('utf8');
  stream.on('data', (text: string) => {
    const lines = (pending + text).split('\n');
    pending = required(lines.pop());
    for (const line of lines) take(line);
    if (pending.length > MAX_LINE) {
      take(pending);
      pending = '';
    }
  });
  stream.on('error', () => {});
  stream.on('close', () => {
    if (pending !== '') take(pending);
    pending = '';
  });
}
