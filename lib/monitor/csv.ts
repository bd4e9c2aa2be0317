// CSV monitor: one file per metric, in DeepSpeed's layout. Source: DeepSpeed
// monitor/csv_monitor.py.
import { join, resolve } from 'node:path';

import { onDisk } from '../runtime/on-disk.js';
import { type OptionNames, readOptions } from '../runtime/options.js';
import { requireType } from '../runtime/require-type.js';
import { AppendFile, makeFolder } from './append-file.js';
import { type Monitor, type MonitorEvent, requireEvents } from './monitor.js';

/**
 * Where a monitor writes: `<outputPath>/<jobName>`, relative to the working directory in which it
 * is made.
 */
export interface LogFolder {
  /** Where the job's folder goes. */
  outputPath: string;
  /** What the folder is called. */
  jobName: string;
}

const FOLDER: OptionNames<LogFolder> = { outputPath: true, jobName: true };

/** The path of it. Throws DS_ARGUMENT for unknown names, and where one is missing or no text. */
export function logFolder(op: string, given: LogFolder): string {
  const { outputPath, jobName } = readOptions(op, given, FOLDER);
  requireType(`${op} outputPath`, outputPath, 'string');
  requireType(`${op} jobName`, jobName, 'string');
  const wanted = { op: `${op} outputPath`, expected: 'a working directory that is there' };
  return onDisk(wanted, () => resolve(join(outputPath, jobName)));
}

/**
 * "Train/Samples/lr" goes to Train_Samples_lr.csv: the header "step,lr", then a row per event. A
 * later run of the same job appends; the header is written into an empty file only, and a row that
 * a full disk has cut ends where it is. Throws DS_ARGUMENT, DS_IO.
 */
export class CsvMonitor implements Monitor {
  /** The folder with one file for each name. */
  readonly folder: string;
  private readonly files = new Map<string, AppendFile>();

  constructor(at: LogFolder) {
    this.folder = logFolder('CsvMonitor', at);
    makeFolder(this.folder);
  }

  /**
   * Appends a line to the file of each name, at the latest with flush(). Throws DS_ARGUMENT, DS_IO.
   */
  write(events: readonly MonitorEvent[]): void {
    for (const { name, value, step } of requireEvents('CsvMonitor.write', events)) {
      this.file(name).append(Buffer.from(row(String(step), number(value))));
    }
  }

  async flush(): Promise<void> {
    await Promise.all([...this.files.values()].map((file) => file.sync()));
  }

  close(): void {
    for (const file of this.files.values()) file.close();
    this.files.clear();
  }

  private file(name: string): AppendFile {
    const known = this.files.get(name);
    if (known) return known;
    const file = new AppendFile(join(this.folder, `${name.replace(/[/ ]/g, '_')}.csv`));
    this.files.set(name, file);
    const column = name.slice(name.lastIndexOf('/') + 1);
    if (file.initialBytes === 0) file.append(Buffer.from(row('step', quoted(column))));
    else if (file.lastByte !== NEWLINE) file.append(Buffer.from('\r\n'));
    return file;
  }
}

const NEWLINE = 10;

/** Lines end as those of Python's csv writer. */
function row(step: string, value: string): string {
  return `${step},${value}\r\n`;
}

function quoted(field: string): string {
  return /[",\r\n]/.test(field) ? `"${field.replaceAll('"', '""')}"` : field;
}

/** A number as Python writes and reads it. */
function number(value: number): string {
  if (Number.isFinite(value)) return String(value);
  if (Number.isNaN(value)) return 'nan';
  return value > 0 ? 'inf' : '-inf';
}
