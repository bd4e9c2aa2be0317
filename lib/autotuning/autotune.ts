// The search: measures the model, tries the configurations that fit, and keeps the best.
import type { ResolvedConfig } from '../../types/config.js';
import { ConfigError } from '../config/config-error.js';
import {
  checkSearch,
  type DsConfig,
  noticeLine,
  readConfig,
  resolveConfig,
} from '../config/index.js';
import { isSection, type Section } from '../config/schema.js';
import { byteText } from '../runtime/byte-text.js';
import { requestedBatches } from './batch-choice.js';
import { Experiments, Interrupted, type Jobs } from './experiments.js';
import { configArgument, type Mappings } from './program-arguments.js';
import {
  type Candidate,
  firstRuns,
  type OffloadChoice,
  type Space,
  variantsOf,
  waysOf,
} from './search-space.js';
import { bestOf, metricOf, type Row, Tuner } from './tuner.js';

type Settings = ResolvedConfig['autotuning'];

/** The program and the environment of one search. */
export interface AutotuneRequest {
  /** The program's own arguments. One of them names the ds_config.json. */
  args: readonly string[];
  /** Arguments that set keys of the configuration, if the program is a known one. */
  known: Readonly<Record<string, string>>;
  jobs: Jobs;
  /** Prints a line. */
  say: (line: string) => void;
}

/** The result of a search. */
export interface SearchResult {
  /** Path of the best ds_config.json, or null if no experiment was measured. */
  file: string | null;
  /** The program's arguments with that file. */
  args: readonly string[];
  isInterrupted: boolean;
}

/**
 * Runs a search and writes the results to results_dir.
 *
 * Throws DS_ARGUMENT if the arguments name no configuration or the program does not train with it,
 * DS_CONFIG, DS_IO.
 */
export async function autotune(request: AutotuneRequest): Promise<SearchResult> {
  const { args, known, jobs, say } = request;
  const config = configArgument(args);
  const file = readConfig(config.file) as Section;
  requireFreeBatch(config.file, file);
  const settings = settingsOf(config.file, file, say);
  const mappings: Mappings = { named: namedBy(settings), known };
  const batches = requestedBatches(file, settings, args, mappings);
  const experiments = new Experiments(jobs, settings, { args, config, mappings });
  const search = new Search({ file, settings, batches }, experiments, say);
  const isInterrupted = await search.run();
  const best = search.best();
  const found = best ? experiments.best(best.candidate) : null;
  for (const line of search.report(found?.file ?? null)) say(line);
  return { file: found?.file ?? null, args: found?.args ?? args, isInterrupted };
}

function namedBy({ arg_mappings: named }: Settings): Readonly<Record<string, string>> {
  return (named ?? {}) as Readonly<Record<string, string>>;
}

/** A search varies batch sizes, which elasticity would override. */
function requireFreeBatch(path: string, { elasticity }: Section): void {
  if (!isSection(elasticity) || elasticity.enabled !== true) return;
  const where = { file: path, location: null, path: 'elasticity.enabled' };
  const hint = 'Switch it off for the search, or keep the batch sizes that `ds elastic` prints.';
  throw new ConfigError({ ...where, expected: 'false in a search', got: 'true', hint });
}

/** Returns the section with its defaults. Errors and notices have their positions in the file. */
function settingsOf(path: string, { autotuning }: Section, say: (line: string) => void): Settings {
  const { errors, notices } = checkSearch(path, { worldSize: 1, autoLater: true });
  const isOurs = ({ path: key }: { path: string }): boolean => /^autotuning(\.|$)/.test(key);
  for (const notice of notices.filter(isOurs)) {
    if (notice.path !== 'autotuning.enabled') say(noticeLine(notice));
  }
  const error = errors.find(isOurs);
  if (error) throw error;
  const section = { ...(autotuning as Section | null), enabled: true };
  const minimal = { train_micro_batch_size_per_gpu: 1, autotuning: section } as DsConfig;
  return resolveConfig(minimal, { worldSize: 1 }).autotuning;
}

class Search {
  private readonly rows: Row[] = [];
  private ways: readonly OffloadChoice[] = [];
  private readonly startedAt = performance.now();

  constructor(
    private readonly space: Space,
    private readonly experiments: Experiments,
    private readonly say: (line: string) => void,
  ) {}

  /** Runs all experiments. Returns true if the search was interrupted. */
  async run(): Promise<boolean> {
    try {
      const info = await this.experiments.modelInfo(firstRuns(this.space));
      this.ways = waysOf(this.space, info);
      await this.tryAll(this.firstOfEach());
      const best = this.best();
      if (!this.space.settings.fast && best) {
        await this.tryAll(variantsOf(best.candidate, this.space, info), [best]);
      }
      return false;
    } catch (error) {
      if (error instanceof Interrupted) return true;
      throw error;
    }
  }

  best(): Row | null {
    return bestOf(this.rows, this.space.settings.metric);
  }

  /** Writes the summary file and returns its lines. */
  report(best: string | null): string[] {
    const seconds = (performance.now() - this.startedAt) / 1000;
    const { metric } = this.space.settings;
    const lines = summaryOf({ rows: this.rows, ways: this.ways, metric, seconds, best });
    this.experiments.summarize(`${lines.join('\n')}\n`);
    return lines;
  }

  /**
   * The first `num_tuning_micro_batch_sizes` candidates of each way, or all sizes that the file
   * lists.
   */
  private firstOfEach(): Candidate[] {
    const { settings, batches } = this.space;
    const count = batches.only ? undefined : settings.num_tuning_micro_batch_sizes;
    return this.ways.flatMap(({ candidates }) => candidates.slice(0, count));
  }

  private async tryAll(candidates: readonly Candidate[], known: readonly Row[] = []) {
    const { settings } = this.space;
    const tuner = new Tuner(candidates, settings, known);
    for (let next = tuner.next(); next; next = tuner.next()) {
      const row = await this.experiments.runCandidate(next);
      this.rows.push(row);
      tuner.addRow(row);
      const smaller = tuner.waits(next.way) ? null : this.smallerThan(row);
      if (smaller) tuner.add(smaller);
      this.say(experimentLine(row, settings.metric, tuner.left));
    }
  }

  /** If memory was short for every candidate of a way: its next smaller micro-batch. */
  private smallerThan({ isShort, candidate }: Row): Candidate | null {
    const { way, microBatch } = candidate;
    const ofWay = this.rows.filter(({ candidate: other }) => other.way === way);
    if (!isShort || ofWay.some(({ metrics }) => metrics !== null)) return null;
    const tried = new Set(ofWay.map(({ candidate: other }) => other.microBatch));
    const all = this.ways.find(({ name }) => name === way)?.candidates ?? [];
    return (
      all.find(
        (candidate) => candidate.microBatch < microBatch && !tried.has(candidate.microBatch),
      ) ?? null
    );
  }
}

// The output of a search: one line per experiment, and the final table.

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
function experimentLine(row: Row, metric: Metric, left: number): string {
  const value = metricOf(row, metric);
  const result = value === null ? `nothing: ${row.failure}` : `${number(value)} ${UNITS[metric]}`;
  const more = left > 0 ? ` (at most ${left} more)` : '';
  return `autotuning: ${row.candidate.name}: ${result}${more}`;
}

interface Searched {
  rows: readonly Row[];
  ways: readonly OffloadChoice[];
  metric: Metric;
  seconds: number;
  /** The file of the best configuration, or null. */
  best: string | null;
}

/**
 * Returns a table of all experiments, the best of each way, the ways without candidates, and the
 * best file.
 */
function summaryOf({ rows, ways, metric, seconds, best }: Searched): string[] {
  const measured = rows.map((row) => {
    const { metrics, failure, candidate } = row;
    const peak = metrics ? byteText(metrics.peak_memory) : '';
    const value = metricOf(row, metric);
    return [candidate.name, value === null ? '' : number(value), peak, failure ?? ''];
  });
  const spaces = new Set(rows.map(({ candidate }) => candidate.way));
  const ofSpaces = [...spaces, 'global'].map((space) => {
    const ownRows = rows.filter(({ candidate }) => space === 'global' || candidate.way === space);
    const top = bestOf(ownRows, metric);
    const value = top && metricOf(top, metric);
    return [space, `${ownRows.length}`, value ? number(value) : '', top?.candidate.name ?? ''];
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
