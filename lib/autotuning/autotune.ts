// Searches for the fastest configuration: measures the model and runs the configurations that fit.
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
import { readBatchRequest } from './batch-choice.js';
import { Experiments, Interrupted, type Jobs } from './experiments.js';
import { findConfigArgument, type Mappings } from './program-arguments.js';
import {
  type Candidate,
  listBranches,
  listFirstConfigs,
  listVariants,
  type SearchBranch,
  type SearchSpace,
} from './search-space.js';
import { type ExperimentResult, findBest, readMetric, Tuner } from './tuner.js';

type Settings = ResolvedConfig['autotuning'];

/** The program and the environment of one search. */
export interface AutotuneRequest {
  /** The program's own arguments. One of them is the path of ds_config.json. */
  args: readonly string[];
  /** Arguments of a known program, by the keys of the configuration that they set. */
  known: Readonly<Record<string, string>>;
  jobs: Jobs;
  /** Prints a line. */
  print: (line: string) => void;
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
 * DS_CONFIG if the configuration is invalid, DS_IO if a result cannot be written.
 */
export async function autotune(request: AutotuneRequest): Promise<SearchResult> {
  const { args, known, jobs, print } = request;
  const config = findConfigArgument(args);
  const file = readConfig(config.file) as Section;
  requireFreeBatch(config.file, file);
  const settings = readSettings(config.file, file, print);
  const mappings: Mappings = { named: readMappings(settings), known };
  const batches = readBatchRequest(file, settings, args, mappings);
  const experiments = new Experiments(jobs, settings, { args, config, mappings });
  const search = new Search({ file, settings, batches }, experiments, print);
  const isInterrupted = await search.run();
  const best = search.best();
  const bestFiles = best ? experiments.writeBest(best.candidate) : null;
  for (const line of search.writeSummary(bestFiles?.file ?? null)) print(line);
  return { file: bestFiles?.file ?? null, args: bestFiles?.args ?? args, isInterrupted };
}

function readMappings({ arg_mappings: named }: Settings): Readonly<Record<string, string>> {
  return (named ?? {}) as Readonly<Record<string, string>>;
}

/** Throws DS_CONFIG with elasticity, which would override the batch sizes that a search varies. */
function requireFreeBatch(path: string, { elasticity }: Section): void {
  if (!isSection(elasticity) || elasticity.enabled !== true) return;
  const where = { file: path, location: null, path: 'elasticity.enabled' };
  const hint = 'Switch it off for the search, or keep the batch sizes that `ds elastic` prints.';
  throw new ConfigError({ ...where, expected: 'false in a search', got: 'true', hint });
}

/** Returns the section `autotuning` with its defaults. Prints its notices and throws its errors. */
function readSettings(
  path: string,
  { autotuning }: Section,
  print: (line: string) => void,
): Settings {
  const { errors, notices } = checkSearch(path, { worldSize: 1, autoLater: true });
  const isAutotuningKey = ({ path: key }: { path: string }): boolean =>
    /^autotuning(\.|$)/.test(key);
  for (const notice of notices.filter(isAutotuningKey)) {
    if (notice.path !== 'autotuning.enabled') print(noticeLine(notice));
  }
  const error = errors.find(isAutotuningKey);
  if (error) throw error;
  const section = { ...(autotuning as Section | null), enabled: true };
  const minimal = { train_micro_batch_size_per_gpu: 1, autotuning: section } as DsConfig;
  return resolveConfig(minimal, { worldSize: 1 }).autotuning;
}

class Search {
  private readonly rows: ExperimentResult[] = [];
  private choices: readonly SearchBranch[] = [];
  private readonly startedAt = performance.now();

  constructor(
    private readonly space: SearchSpace,
    private readonly experiments: Experiments,
    private readonly print: (line: string) => void,
  ) {}

  /** Runs all experiments. Returns true if the search was interrupted. */
  async run(): Promise<boolean> {
    try {
      const info = await this.experiments.measureModel(listFirstConfigs(this.space));
      this.choices = listBranches(this.space, info);
      await this.tryAll(this.listFirstCandidates());
      const best = this.best();
      if (!this.space.settings.fast && best) {
        await this.tryAll(listVariants(best.candidate, this.space, info), [best]);
      }
      return false;
    } catch (error) {
      if (error instanceof Interrupted) return true;
      throw error;
    }
  }

  best(): ExperimentResult | null {
    return findBest(this.rows, this.space.settings.metric);
  }

  /** Writes the summary file and returns its lines. */
  writeSummary(best: string | null): string[] {
    const seconds = (performance.now() - this.startedAt) / 1000;
    const { metric } = this.space.settings;
    const lines = formatSummary({ rows: this.rows, branches: this.choices, metric, seconds, best });
    this.experiments.writeSummary(`${lines.join('\n')}\n`);
    return lines;
  }

  /**
   * Returns the first `num_tuning_micro_batch_sizes` candidates of each branch, or the candidates
   * of all sizes that the file lists.
   */
  private listFirstCandidates(): Candidate[] {
    const { settings, batches } = this.space;
    const count = batches.only ? undefined : settings.num_tuning_micro_batch_sizes;
    return this.choices.flatMap(({ candidates }) => candidates.slice(0, count));
  }

  private async tryAll(candidates: readonly Candidate[], known: readonly ExperimentResult[] = []) {
    const { settings } = this.space;
    const tuner = new Tuner(candidates, settings, known);
    for (let next = tuner.next(); next; next = tuner.next()) {
      const row = await this.experiments.runCandidate(next);
      this.rows.push(row);
      tuner.addResult(row);
      const smaller = tuner.hasWaiting(next.branch) ? null : this.nextSmaller(row);
      if (smaller) tuner.add(smaller);
      this.print(formatExperiment(row, settings.metric, tuner.left));
    }
  }

  /**
   * Returns the next smaller micro-batch of a branch if all tried sizes ran out of memory, or null.
   */
  private nextSmaller({ isShort, candidate }: ExperimentResult): Candidate | null {
    const { branch, microBatch } = candidate;
    const sameBranch = this.rows.filter(({ candidate: other }) => other.branch === branch);
    if (!isShort || sameBranch.some(({ metrics }) => metrics !== null)) return null;
    const triedSizes = new Set(sameBranch.map(({ candidate: other }) => other.microBatch));
    const candidates = this.choices.find(({ name }) => name === branch)?.candidates ?? [];
    return (
      candidates.find(
        (candidate) => candidate.microBatch < microBatch && !triedSizes.has(candidate.microBatch),
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
function formatNumber(value: number): string {
  const [digits = '', ...exponent] = value.toPrecision(4).split('e');
  const short = digits.includes('.') ? digits.replace(/\.?0+$/, '') : digits;
  return [short, ...exponent].join('e');
}

/**
 * Returns the line "autotuning: z1_gas1_tmbspg4: 123.4 samples/s, 48 ms a step (at most 5 more)".
 */
function formatExperiment(row: ExperimentResult, metric: Metric, left: number): string {
  const value = readMetric(row, metric);
  const result =
    value === null ? `nothing: ${row.failure}` : `${formatNumber(value)} ${UNITS[metric]}`;
  const more = left > 0 ? ` (at most ${left} more)` : '';
  return `autotuning: ${row.candidate.name}: ${result}${more}`;
}

interface SearchSummary {
  rows: readonly ExperimentResult[];
  branches: readonly SearchBranch[];
  metric: Metric;
  seconds: number;
  /** The file of the best configuration, or null. */
  best: string | null;
}

/**
 * Returns a table of all experiments, the best of each branch, the branches without candidates, and
 * the best file.
 */
function formatSummary({ rows, branches, metric, seconds, best }: SearchSummary): string[] {
  const measured = rows.map((row) => {
    const { metrics, failure, candidate } = row;
    const peak = metrics ? byteText(metrics.peak_memory) : '';
    const value = readMetric(row, metric);
    return [candidate.name, value === null ? '' : formatNumber(value), peak, failure ?? ''];
  });
  const spaces = new Set(rows.map(({ candidate }) => candidate.branch));
  const spaceTable = [...spaces, 'global'].map((space) => {
    const spaceRows = rows.filter(
      ({ candidate }) => space === 'global' || candidate.branch === space,
    );
    const top = findBest(spaceRows, metric);
    const value = top && readMetric(top, metric);
    return [
      space,
      `${spaceRows.length}`,
      value ? formatNumber(value) : '',
      top?.candidate.name ?? '',
    ];
  });
  const omitted = branches.flatMap(({ name, reason }) =>
    reason ? [`${name} was left out: ${reason}`] : [],
  );
  return [
    ...formatTable([['experiment', UNITS[metric], 'peak memory', 'failure'], ...measured]),
    '',
    ...formatTable([
      ['tuning_space', 'num_experiments', UNITS[metric], 'best_exp_name'],
      ...spaceTable,
    ]),
    ...(omitted.length > 0 ? ['', ...omitted] : []),
    '',
    best
      ? `The best configuration is ${best}.`
      : 'No experiment measured anything: there is no best configuration.',
    `${rows.length} experiments in ${seconds.toFixed(0)} s.`,
  ];
}

function formatTable([head = [], ...rows]: readonly string[][]): string[] {
  const widths = head.map((_, i) =>
    Math.max(3, ...[head, ...rows].map((row) => row[i]?.length ?? 0)),
  );
  const formatLine = (row: readonly string[]): string =>
    `| ${row.map((cell, i) => cell.padEnd(widths[i] ?? 0)).join(' | ')} |`;
  return [
    formatLine(head),
    formatLine(widths.map((width) => '-'.repeat(width))),
    ...rows.map(formatLine),
  ];
}
