// Writes the output of a job to log files. The job continues if a file cannot be written.
import { createWriteStream, type WriteStream } from 'node:fs';
import { finished } from 'node:stream/promises';

import { DsError } from '../errors.js';
import type { StreamName } from './lines.js';

/** The log files of one job. */
export class JobLogs {
  private readonly streams = new Map<StreamName, WriteStream>();
  private readonly ends: Promise<void>[] = [];

  /**
   * `onError` is called once for each file that cannot be written. The rest of its output is lost.
   */
  constructor(
    private readonly files: Readonly<Record<StreamName, string>>,
    private readonly onError: (error: DsError) => void,
  ) {}

  /** Appends a line to a file; the first line opens the file. */
  readonly line = (name: StreamName, text: string): void => {
    const stream = this.streams.get(name) ?? this.openFile(name);
    if (stream.writable) stream.write(`${text}\n`);
  };

  /** Resolves when all lines are written, or have failed. */
  async close(): Promise<void> {
    for (const stream of this.streams.values()) stream.end();
    await Promise.all(this.ends);
  }

  private openFile(name: StreamName): WriteStream {
    const file = this.files[name];
    const stream = createWriteStream(file, { flags: 'a' });
    this.streams.set(name, stream);
    this.ends.push(
      finished(stream).catch((cause: Error) => this.onError(outputLostError(file, cause))),
    );
    return stream;
  }
}

function outputLostError(file: string, cause: Error): DsError {
  return new DsError({
    code: 'DS_IO',
    op: `autotuning ${file}`,
    expected: 'disk space for the output of the job; the rest of the output is lost',
    got: cause.message,
    cause,
  });
}
