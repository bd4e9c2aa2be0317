// The output of a search: one line per experiment, and the final table.
import type { ResolvedConfig } from '../../types/config.js';
import { byteText } from '../runtime/byte-text.js';
import type { Way } from './search-space.js';
import { bestOf, metricOf, type Row } from './tuner.js';

type Metric = ResolvedConfig['autotuning']['metric'];

const UNITS: Readonly<Record<Metric, string>> = {
  throughput: 'samples/s',
  latency: 'ms a step',
  flops: 'FLOPS of each GPU',
};

/** Formats four digits without trailing zeros: "29.08", "1200", "4.5e+13". */
function number(value: number): string {
  const [digits = '', ...exponent] = value.toPrecision(4).split('e');
  const short = digits.includes('.') ? digits.replace(/\.?0+$/, '') : digits;
  return [short, ...exponent].join('e');
}

/** "autotuning: z1_gas1_tmbspg4: 123.4 samples/s, 48 ms a step (at most 5 more)". */
export function experimentLine(row: Row, metric: Metric, left: number): string {
  const value = metricOf(row, metric);
  const said = value === null ? `nothing: ${row.failure}` : `${number(value)} ${UNITS[metric]}`;
  const more = left > 0 ? ` (at most ${left} more)` : '';
  return `autotuning: ${row.candidate.name}: ${said}${more}`;
}

interface Searched {
  rows: readonly Row[];
  ways: readonly Way[];
  metric: Metric;
  seconds: number;
  /** The file of the best configuration, or null. */
  best: string | null;
}

/**
 * Returns a table of all experiments, the best of each way, the ways without candidates, and the
 * best file.
 */
export function summaryOf({ rows, ways, metric, seconds, best }: Searched): string[] {
  const measured = rows.map((row) => {
    const { metrics, failure, candidate } = row;
    const peak = metrics ? byteText(metrics.peak_memory) : '';
    const value = metricOf(row, metric);
    return [candidate.name, value === null ? '' : number(value), peak, failure ?? ''];
  });
  const spaces = new Set(rows.map(({ candidate }) => candidate.way));
  const ofSpaces = [...spaces, 'global'].map((space) => {
    const own = rows.filter(({ candidate }) => space === 'global' || candidate.way === space);
    const top = bestOf(own, metric);
    const value = top && metricOf(top, metric);
    return [space, `${own.length}`, value ? number(value) : '', top?.candidate.name ?? ''];
  });
  const left = ways.flatMap(({ name, reason }) =>
    reason ? [`${name} was left out: ${reason}`] : [],
  );
  return [
    ...table([['experiment', UNITS[metric], 'peak memory', 'failure'], ...measured]),
    '',
    ...table([['tuning_space', 'num_experiments', UNITS[metric], 'best_exp_name'], ...ofSpaces]),
    ...(left.length > 0 ? ['', ...left] : []),
    '',
    best
      ? `The best configuration is ${best}.`
      : 'No experiment measured anything: there is no best configuration.',
    `${rows.length} experiments in ${seconds.toFixed(0)} s.`,
  ];
}

function table([head = [], ...rows]: readonly string[][]): string[] {
  const widths = head.map((_, i) =>
    Math.max(3, ...[head, ...rows].map((row) => row[i]?.length ?? 0)),
  );
  const line = (row: readonly string[]): string =>
    `| ${row.map((cell, i) => cell.padEnd(widths[i] ?? 0)).join(' | ')} |`;
  return [line(head), line(widths.map((width) => '-'.repeat(width))), ...rows.map(line)];
}
