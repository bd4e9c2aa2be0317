// Writes the metrics of a run to CSV files, one per metric, in DeepSpeed's layout. Source:
// DeepSpeed monitor/csv_monitor.py.
import { join, resolve } from 'node:path';

import { onDisk } from '../runtime/on-disk.js';
import { namesOf, readOptions } from '../runtime/options.js';
import { requireType } from '../runtime/require-type.js';
import { AppendFile, makeFolder } from './append-file.js';
import { type Monitor, type MonitorEvent, requireEvents } from './monitor.js';

/**
 * The folder of a monitor: `<outputPath>/<jobName>`, relative to the working directory at
 * construction.
 */
export interface LogFolder {
  /** Parent of the job's folder. */
  outputPath: string;
  /** Name of the folder. */
  jobName: string;
}

/**
 * Returns the absolute path of a monitor's folder.
 *
 * Throws DS_ARGUMENT for unknown options, and if an option is missing or not a string. Throws DS_IO
 * if the working directory was deleted.
 */
export function resolveLogFolder(op: string, given: LogFolder): string {
  const { outputPath, jobName } = readOptions(op, given, namesOf.LogFolder);
  requireType(`${op} outputPath`, outputPath, 'string');
  requireType(`${op} jobName`, jobName, 'string');
  const diskOperation = { op: `${op} outputPath`, expected: 'an existing working directory' };
  return onDisk(diskOperation, () => resolve(join(outputPath, jobName)));
}

/**
 * Writes events to CSV files, one for each metric. Writes "Train/Samples/lr" to
 * Train_Samples_lr.csv: the header "step,lr", then one row per event.
 *
 * A later run of the same job appends. Only an empty file gets a header. A row cut by a full disk
 * stays cut, and the next row starts on a new line.
 *
 * Throws DS_ARGUMENT unless `outputPath` is a string, DS_IO if a file cannot be written.
 */
export class CsvMonitor implements Monitor {
  /** The folder, with one file per name. */
  readonly folder: string;
  private readonly files = new Map<string, AppendFile>();

  /** Creates the folder `outputPath`/`jobName`. */
  constructor(at: LogFolder) {
    this.folder = resolveLogFolder('CsvMonitor', at);
    makeFolder(this.folder);
  }

  /**
   * Appends one row per event to the file of its name. Throws DS_ARGUMENT unless each event has a
   * name, a value and a step, DS_IO if a file cannot be written.
   */
  write(events: readonly MonitorEvent[]): void {
    for (const { name, value, step } of requireEvents('CsvMonitor.write', events)) {
      this.openFile(name).append(Buffer.from(formatRow(String(step), formatNumber(value))));
    }
  }

  async flush(): Promise<void> {
    await Promise.all([...this.files.values()].map((file) => file.sync()));
  }

  close(): void {
    for (const file of this.files.values()) file.close();
    this.files.clear();
  }

  private openFile(name: string): AppendFile {
    const existing = this.files.get(name);
    if (existing) return existing;
    const file = new AppendFile(join(this.folder, `${name.replace(/[/ ]/g, '_')}.csv`));
    this.files.set(name, file);
    const column = name.slice(name.lastIndexOf('/') + 1);
    if (file.initialBytes === 0) file.append(Buffer.from(formatRow('step', quoteField(column))));
    else if (file.lastByte !== NEWLINE) file.append(Buffer.from('\r\n'));
    return file;
  }
}

const NEWLINE = 10;

/** Uses the line ends of Python's csv writer: "\r\n". */
function formatRow(step: string, value: string): string {
  return `${step},${value}\r\n`;
}

function quoteField(field: string): string {
  return /[",\r\n]/.test(field) ? `"${field.replaceAll('"', '""')}"` : field;
}

/** Formats a number as Python does. */
function formatNumber(value: number): string {
  if (Number.isFinite(value)) return String(value);
  if (Number.isNaN(value)) return 'nan';
  return value > 0 ? 'inf' : '-inf';
}
