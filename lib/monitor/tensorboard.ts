// TensorBoard monitor: one event file per run, written without TensorFlow or Python.
import { hostname } from 'node:os';
import { join } from 'node:path';

import { AppendFile, makeFolder } from './append-file.js';
import { type LogFolder, logFolder } from './csv.js';
import { scalarEvent, tfRecord, versionEvent } from './event-record.js';
import { type Monitor, type MonitorEvent, requireEvents } from './monitor.js';

/** Tells apart the files of one process that were opened in the same second. */
let opened = 0;

/**
 * Writes `<outputPath>/<jobName>/events.out.tfevents.<seconds>.<host>.<process>.<number>`. Each
 * write() is one append, so a crash costs at most the record that it cuts. Throws DS_ARGUMENT,
 * DS_IO.
 */
export class TensorBoardMonitor implements Monitor {
  private readonly file: AppendFile;

  constructor(at: LogFolder) {
    const folder = logFolder('TensorBoardMonitor', at);
    const start = seconds();
    const run = `${Math.floor(start)}.${hostname()}.${process.pid}.${opened++}`;
    makeFolder(folder);
    this.file = new AppendFile(join(folder, `events.out.tfevents.${run}`), { fresh: true });
    try {
      this.file.append(tfRecord(versionEvent(start)));
    } catch (error) {
      this.file.close();
      throw error;
    }
  }

  /** The event file. */
  get path(): string {
    return this.file.path;
  }

  /**
   * Appends a scalar for each event, at the latest with flush(). Throws DS_IO, and DS_ARGUMENT for
   * what is no event, and for a step that is no whole number from 0.
   */
  write(events: readonly MonitorEvent[]): void {
    const now = seconds();
    const checked = requireEvents('TensorBoardMonitor.write', events);
    this.file.append(Buffer.concat(checked.map((event) => tfRecord(scalarEvent(event, now)))));
  }

  flush(): Promise<void> {
    return this.file.sync();
  }

  close(): void {
    this.file.close();
  }
}

function seconds(): number {
  return Date.now() / 1000;
}
