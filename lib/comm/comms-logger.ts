// CommsLogger: counts, sizes, times and bandwidths of collectives, like DeepSpeed's comms_logger.

import { dtypeSize } from '../runtime/dtype.js';
import type { Collective, CollectiveKind } from '../runtime/job.js';
import { namesOf, readOptions } from '../runtime/options.js';
import { required } from '../runtime/required.js';

/** A logged collective. */
export interface CommsRecord {
  /** The collective, such as "allReduce". */
  kind: CollectiveKind;
  /** Bytes of the larger of input and output, as DeepSpeed counts. */
  bytes: number;
  /** Number of ranks in its group. */
  ranks: number;
  /** Time from the start of the collective to its end. */
  milliseconds: number;
  /** The option `purpose` of the collective, or the file and line of the call. */
  label: string;
}

/** Options of CommsLogger. */
export interface CommsLoggerOptions {
  /** Log every collective. If false, log only the kinds in `ops`. Default: true. */
  profAll?: boolean;
  /** The kinds to log if `profAll` is false. */
  ops?: readonly CollectiveKind[];
  /** Called with each record as one line. */
  verbose?: (line: string) => void;
}

/** Totals of all calls of one kind and size. */
export interface CommsTotal {
  /** The collective, such as "allReduce". */
  kind: CollectiveKind;
  /** Bytes per call, counted as in CommsRecord. */
  bytes: number;
  /** Number of calls. */
  count: number;
  /** Milliseconds of all calls. */
  totalMs: number;
  /** Mean milliseconds per call. */
  meanMs: number;
  /** Algorithm bandwidth in Gbit/s, mean over the calls. See bandwidth(). */
  algbw: number;
  /** Bus bandwidth in Gbit/s, mean over the calls. See bandwidth(). */
  busbw: number;
}

/**
 * Returns the bandwidths of one call in Gbit/s, by DeepSpeed's formulas
 * (deepspeed/utils/comms_logging.py). For allGather and reduceScatter, `bytes` counts one rank, and
 * algbw counts all ranks. For allReduce, algbw counts the bytes twice. busbw is algbw times (ranks
 * - 1) / ranks.
 */
export function bandwidth(
  kind: CollectiveKind,
  bytes: number,
  milliseconds: number,
  ranks: number,
): { algbw: number; busbw: number } {
  const gbits = (size: number) => (milliseconds > 0 ? (size * 8) / (milliseconds * 1e6) : 0);
  const fraction = (ranks - 1) / ranks;
  switch (kind) {
    case 'allReduce':
      return { algbw: gbits(2 * bytes), busbw: gbits(2 * bytes * fraction) };
    case 'allGather':
    case 'reduceScatter':
      return { algbw: gbits(bytes * ranks), busbw: gbits(bytes * ranks * fraction) };
    case 'allToAll':
      return { algbw: gbits(bytes), busbw: gbits(bytes * fraction) };
    default:
      return { algbw: gbits(bytes), busbw: gbits(bytes) };
  }
}

/**
 * Records the collectives of process groups: see ProcessGroup.logger. Times include the wait for
 * the slowest rank. While a group has a logger, the host waits for each of its collectives.
 */
export class CommsLogger {
  private readonly records: CommsRecord[] = [];

  private readonly options: CommsLoggerOptions;

  /** Throws DS_ARGUMENT for unknown options. */
  constructor(given: CommsLoggerOptions = {}) {
    this.options = readOptions('CommsLogger', given, namesOf.CommsLoggerOptions);
  }

  /** @internal Returns the record of a call. */
  static record(call: Collective, ranks: number, milliseconds: number, label: string): CommsRecord {
    const dtype = (call.input ?? call.output)?.dtype ?? 'u8';
    const slots = call.kind === 'allToAll' ? ranks : 1;
    const bytes = call.count * call.rows * slots * dtypeSize(dtype);
    return { kind: call.kind, bytes, ranks, milliseconds, label };
  }

  /** Adds the record of one collective if the options select its kind. */
  add(record: CommsRecord): void {
    const { profAll = true, ops = [], verbose } = this.options;
    if (!profAll && !ops.includes(record.kind)) return;
    this.records.push(record);
    if (!verbose) return;
    const { kind, bytes, milliseconds, ranks, label } = record;
    const { algbw, busbw } = bandwidth(kind, bytes, milliseconds, ranks);
    const figures = `${milliseconds.toFixed(2)} ms, algbw ${algbw.toFixed(2)}, busbw ${busbw.toFixed(2)} Gbps`;
    verbose(`${kind} ${binary(bytes)} ${figures} (${label})`);
  }

  /** Returns totals by kind and size, sorted by kind, then size. */
  totals(): CommsTotal[] {
    const sums = new Map<string, CommsTotal>();
    for (const { kind, bytes, milliseconds, ranks } of this.records) {
      const key = `${kind} ${bytes}`;
      const sum = sums.get(key) ?? emptyTotal(kind, bytes);
      const { algbw, busbw } = bandwidth(kind, bytes, milliseconds, ranks);
      sum.count++;
      sum.totalMs += milliseconds;
      sum.algbw += algbw;
      sum.busbw += busbw;
      sums.set(key, sum);
    }
    const means = [...sums.values()].map((sum) => ({
      ...sum,
      meanMs: sum.totalMs / sum.count,
      algbw: sum.algbw / sum.count,
      busbw: sum.busbw / sum.count,
    }));
    return means.sort((a, b) => a.kind.localeCompare(b.kind) || a.bytes - b.bytes);
  }

  /** Returns the milliseconds of each call: a list for each entry of totals(), in call order. */
  latencies(): number[][] {
    return this.totals().map(({ kind, bytes }) =>
      this.records
        .filter((record) => record.kind === kind && record.bytes === bytes)
        .map(({ milliseconds }) => milliseconds),
    );
  }

  /**
   * Returns a table with DeepSpeed's columns. `min` has the form of latencies(): the time of each
   * call on the rank that waited least. With `min`, the table also shows how long this rank waited
   * for the slowest rank.
   */
  summary(min?: readonly (readonly number[])[]): string {
    const head = ['Comm. Op', 'Message Size', 'Count', 'Total Latency(ms)', 'Avg Latency(ms)'];
    const waits = min && stragglerWaits(this.latencies(), min);
    const rows = this.totals().map((t, i) => [
      t.kind,
      binary(t.bytes),
      String(t.count),
      t.totalMs.toFixed(2),
      t.meanMs.toFixed(2),
      t.algbw.toFixed(2),
      t.busbw.toFixed(2),
      ...(waits
        ? [required(waits[i]), required(waits[i]) / t.count].map((ms) => ms.toFixed(2))
        : []),
    ]);
    const columns = [...head, 'algbw (Gbps)', 'busbw (Gbps)'];
    const waited = waits ? ['Total Straggler(ms)', 'Avg Straggler(ms)'] : [];
    const table = [[...columns, ...waited], ...rows];
    const widths = required(table[0]).map((_, column) =>
      Math.max(...table.map((row) => required(row[column]).length)),
    );
    return table
      .map((row) => row.map((cell, i) => cell.padEnd(required(widths[i]))).join('  '))
      .join('\n');
  }

  /** Drops all records. */
  reset(): void {
    this.records.length = 0;
  }
}

/**
 * Returns, for each entry of totals(), how many milliseconds this rank waited longer than the rank
 * that waited least.
 */
const stragglerWaits = (
  ownLatencies: readonly (readonly number[])[],
  min: readonly (readonly number[])[],
): number[] =>
  ownLatencies.map((times, i) =>
    times.reduce((sum, ms, j) => sum + Math.max(0, ms - (min[i]?.[j] ?? ms)), 0),
  );

function emptyTotal(kind: CollectiveKind, bytes: number): CommsTotal {
  return { kind, bytes, count: 0, totalMs: 0, meanMs: 0, algbw: 0, busbw: 0 };
}

function binary(bytes: number): string {
  const units = ['B', 'KB', 'MB', 'GB', 'TB'];
  const power = Math.min(4, Math.floor(Math.log2(Math.max(1, bytes)) / 10));
  return `${(bytes / 1024 ** power).toFixed(power ? 2 : 0)} ${units[power]}`;
}
