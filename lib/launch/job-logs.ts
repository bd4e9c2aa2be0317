// Log files with the output of a job. The job continues if a file cannot be written.
import { createWriteStream, type WriteStream } from 'node:fs';
import { finished } from 'node:stream/promises';

import { DsError } from '../errors.js';
import type { StreamName } from './lines.js';

/** The files of one job. */
export class JobLogs {
  private readonly streams = new Map<StreamName, WriteStream>();
  private readonly ends: Promise<void>[] = [];

  /**
   * `refused` is called once for each file that cannot be written. The rest of its output is lost.
   */
  constructor(
    private readonly files: Readonly<Record<StreamName, string>>,
    private readonly refused: (error: DsError) => void,
  ) {}

  /** Adds a line to the end of a file, which is opened by the first one. */
  readonly line = (name: StreamName, text: string): void => {
    const stream = this.streams.get(name) ?? this.open(name);
    if (stream.writable) stream.write(`${text}\n`);
  };

  /** Resolves once all lines are in their files, or cannot be. */
  async close(): Promise<void> {
    for (const stream of this.streams.values()) stream.end();
    await Promise.all(this.ends);
  }

  private open(name: StreamName): WriteStream {
    const file = this.files[name];
    const stream = createWriteStream(file, { flags: 'a' });
    this.streams.set(name, stream);
    this.ends.push(finished(stream).catch((cause: Error) => this.refused(lostError(file, cause))));
    return stream;
  }
}

function lostError(file: string, cause: Error): DsError {
  return new DsError({
    code: 'DS_IO',
    op: `autotuning ${file}`,
    expected: 'disk space for the output of the job; the rest of the output is lost',
    got: cause.message,
    cause,
  });
}
