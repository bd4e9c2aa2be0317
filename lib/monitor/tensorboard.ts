// TensorBoard monitor: one event file per run, written without TensorFlow or Python.
import { hostname } from 'node:os';
import { join } from 'node:path';

import { AppendFile, makeFolder } from './append-file.js';
import { type LogFolder, logFolder } from './csv.js';
import { scalarEvent, tfRecord, versionEvent } from './event-record.js';
import { type Monitor, type MonitorEvent, requireEvents } from './monitor.js';

/** A serial number for files of one process opened in the same second. */
let opened = 0;

/**
 * Writes `<outputPath>/<jobName>/events.out.tfevents.<seconds>.<host>.<process>.<number>`.
 *
 * Each write() is one append, so a crash cuts at most the last record. Throws DS_ARGUMENT, DS_IO.
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

  /** Path of the event file. */
  get path(): string {
    return this.file.path;
  }

  /**
   * Appends one scalar per event.
   *
   * Throws DS_IO, and DS_ARGUMENT if an event is invalid or its step is not an integer >= 0.
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
