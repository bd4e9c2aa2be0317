// Experiments: jobs of the user's own program, each with a configuration, and what each leaves in
// its folder.
import {
  existsSync,
  lstatSync,
  readdirSync,
  readFileSync,
  rmdirSync,
  rmSync,
  writeFileSync,
} from 'node:fs';
import { join, resolve } from 'node:path';

import type { ResolvedConfig } from '../../types/config.js';
import type { Section } from '../config/schema.js';
import { DsError } from '../errors.js';
import type { ExperimentMetrics, ModelInfo } from '../plan/index.js';
import { makeFolderNow } from '../runtime/make-folder.js';
import { onDisk, type Wanted } from '../runtime/on-disk.js';
import { type ConfigArgument, type Mappings, withValues } from './program-arguments.js';
import type { Candidate } from './search-space.js';
import type { Row } from './tuner.js';

type Settings = ResolvedConfig['autotuning'];

/** How a job ended. */
export interface Ended {
  /** As a shell reports it. */
  code: number;
  /** Whether this process was asked to end. */
  isInterrupted: boolean;
}

/** Starts jobs of the program that is tuned. */
export interface Jobs {
  /** GPUs, or places on the CPU, of each node, and nodes. */
  slots: number;
  nodes: number;
  /** Whether ranks run on other machines as well, which see no file of this one. */
  isRemote: boolean;
  /** Runs the program with `args`; its output goes to the two files. */
  run(args: readonly string[], logs: { out: string; err: string }): Promise<Ended>;
  /** What somebody types into a shell who starts the program with `args` by hand. */
  command(args: readonly string[]): string;
}

/** Thrown where the search was asked to end. */
export class Interrupted extends Error {}

/**
 * Sections by which a run of a few steps would write beside the user's own runs; a profiled step
 * takes longer, besides.
 */
const MONITORS = ['tensorboard', 'csv_monitor', 'wandb', 'comet', 'flops_profiler'];

const FIRST_RUN = 'profile_model_info';

/**
 * In folders that a search has made, or taken while they were empty: what it names there is its
 * own.
 */
const MARK = '.ds-autotuning';

/** What an experiment leaves in its folder. */
const LEFT = [
  ...['exp.json', 'ds_config.json', 'cmd.txt', 'stdout.log', 'stderr.log'],
  ...['metrics.json', 'metrics.json.part', 'model_info.json', 'model_info.json.part'],
];

/** Characters of standard error in which a reason is looked for. */
const TAIL = 2 ** 16;

/** The experiments of one search, and its results, in the folders that the settings name. */
export class Experiments {
  readonly results: string;
  private readonly descriptions: string;

  /**
   * Throws DS_IO where the folders cannot be made, or are somebody's: before anything is changed.
   */
  constructor(
    private readonly jobs: Jobs,
    private readonly settings: Settings,
    private readonly program: {
      args: readonly string[];
      config: ConfigArgument;
      mappings: Mappings;
    },
  ) {
    this.results = resolve(settings.results_dir);
    this.descriptions = resolve(settings.exps_dir);
    const folders = [this.results, this.descriptions];
    folders.forEach(requireOwn);
    for (const folder of folders) {
      makeFolder(folder);
      write(join(folder, MARK), '');
    }
    if (settings.overwrite) this.clear();
  }

  /** The model and the memory, by a run that ends with its first forward. Throws DS_ARGUMENT. */
  async modelInfo(configs: readonly Section[]): Promise<ModelInfo> {
    const folder = join(this.results, FIRST_RUN);
    const file = join(folder, 'model_info.json');
    let failure = '';
    for (const config of configs) {
      const own = { enabled: true, model_info_path: file, model_info: { profile: true } };
      const ended = await this.start(FIRST_RUN, unmonitored({ ...config, autotuning: own }));
      const info = readJson<ModelInfo>(file);
      const reason = reasonOf(folder, ended, 'it ended before the first forward of an engine');
      // Where memory is short for it, what it had found before is enough to go on.
      if (info && (info.activation_mem_per_gpu !== null || reason.isShort)) return info;
      failure = reason.text;
      if (info) break;
    }
    throw new DsError({
      code: 'DS_ARGUMENT',
      op: '--autotuning',
      expected: 'a program that trains with the configuration that it is given',
      got: failure,
      hint: `Its output is in ${folder}.`,
    });
  }

  /** Tries `candidate`, or takes the result of the same one where that may be. */
  async runCandidate(candidate: Candidate): Promise<Row> {
    const { name } = candidate;
    const folder = join(this.results, name);
    const file = join(folder, 'metrics.json');
    const { start_profile_step, end_profile_step, metric, overwrite } = this.settings;
    const own = { enabled: true, start_profile_step, end_profile_step, metric, metric_path: file };
    const config = unmonitored({ ...candidate.config, autotuning: own });
    const isThere =
      !overwrite && isSame(readJson(join(folder, 'exp.json')), this.described(name, config));
    const known = isThere ? readJson<ExperimentMetrics>(file) : null;
    if (known) return { candidate, metrics: known, failure: null, isShort: false };
    const ended = await this.start(name, config);
    const metrics = readJson<ExperimentMetrics>(file);
    if (metrics) return { candidate, metrics, failure: null, isShort: false };
    const steps = end_profile_step + (metric === 'flops' ? 2 : 1);
    const reason = reasonOf(folder, ended, `it ended before step ${steps}`);
    return { candidate, metrics: null, failure: reason.text, isShort: reason.isShort };
  }

  /** Writes `config` as the best one; returns the file and the program's arguments with it. */
  best({ config }: Candidate): { file: string; args: readonly string[] } {
    const file = join(this.results, 'ds_config_optimal.json');
    write(file, text(config));
    const args = this.argumentsOf(file, config);
    write(join(this.results, 'cmd_optimal.txt'), `${this.jobs.command(args)}\n`);
    return { file, args };
  }

  /** Beside the results. */
  summarize(summary: string): void {
    write(join(this.results, 'summary.txt'), summary);
  }

  private async start(name: string, config: Section): Promise<Ended> {
    const { jobs } = this;
    const folder = join(this.results, name);
    takeAway(folder, LEFT);
    makeFolder(folder);
    const file = join(folder, 'ds_config.json');
    const all = this.described(name, config);
    const { result_dir: _folder, user_args: args, ...described } = all;
    const logs = { out: join(folder, 'stdout.log'), err: join(folder, 'stderr.log') };
    write(join(this.descriptions, `${name}.json`), text(described));
    write(join(folder, 'exp.json'), text(all));
    write(file, text(config));
    for (const log of Object.values(logs)) write(log, '');
    write(join(folder, 'cmd.txt'), `${jobs.command(args)}\n`);
    const ended = await jobs.run(args, logs);
    if (ended.isInterrupted) throw new Interrupted();
    return ended;
  }

  /** All that an experiment's result depends on but the program itself. */
  private described(name: string, config: Section) {
    const { slots: num_gpus, nodes: num_nodes } = this.jobs;
    const folder = join(this.results, name);
    const user_args = this.argumentsOf(join(folder, 'ds_config.json'), config);
    return { name, ds_config: config, num_gpus, num_nodes, result_dir: folder, user_args };
  }

  /** Other machines get the configuration itself, as DeepSpeed's experiments do. */
  private argumentsOf(file: string, config: Section): string[] {
    const { args: _given, config: argument, mappings } = this.program;
    const word = this.jobs.isRemote
      ? Buffer.from(JSON.stringify(config)).toString('base64url')
      : file;
    return withValues(argument.replaced(word), mappings, config);
  }

  /** Takes away what earlier searches have left, and nothing else. */
  private clear(): void {
    for (const name of readdirSync(this.results)) {
      const folder = join(this.results, name);
      if (!lstatSync(folder).isDirectory() || !existsSync(join(folder, 'exp.json'))) continue;
      takeAway(folder, LEFT);
      if (readdirSync(folder).length === 0) rmdirSync(folder);
      takeAway(this.descriptions, [`${name}.json`]);
    }
  }
}

/** Throws DS_IO where `folder` holds what no search has made. */
function requireOwn(folder: string): void {
  if (!existsSync(folder)) return;
  const names = onDisk(wanted(folder), () => readdirSync(folder));
  if (names.length === 0 || names.includes(MARK)) return;
  throw new DsError({
    code: 'DS_IO',
    op: `autotuning ${folder}`,
    expected: 'an unused name, an empty folder, or the one of an earlier search',
    got: `a folder with ${names[0]}${names.length > 1 ? ` and ${names.length - 1} more` : ''}`,
    hint: 'A search replaces files in its folders: name others by autotuning.results_dir and exps_dir.',
  });
}

function takeAway(folder: string, names: readonly string[]): void {
  for (const name of names)
    onDisk(wanted(join(folder, name)), () => rmSync(join(folder, name), { force: true }));
}

/** `config` as an experiment has it. */
function unmonitored(config: Section): Section {
  return Object.fromEntries(Object.entries(config).filter(([key]) => !MONITORS.includes(key)));
}

/** Why nothing was measured. */
function reasonOf(folder: string, { code }: Ended, early: string) {
  const said = tailOf(join(folder, 'stderr.log'));
  const isKilled = code === 137;
  const isShort = isKilled || /DS_OUT_OF_MEMORY|heap out of memory|out of memory/i.test(said);
  // Without the labels of ranks.
  const lines = said.split('\n').map((line) => line.replace(/^\[[\d,-]+\] /, '').trim());
  const error = lines.find((line) => /^(\w*Error( \[\w+\])?|ds train): /.test(line));
  const ending = code === 0 ? early : `exit code ${code}${isKilled ? ', killed' : ''}`;
  return { isShort, text: error ? `${error.slice(0, 300)} (${ending})` : ending };
}

function tailOf(file: string): string {
  return existsSync(file) ? readFileSync(file, 'utf8').slice(-TAIL) : '';
}

function readJson<Value>(file: string): Value | null {
  try {
    return JSON.parse(readFileSync(file, 'utf8')) as Value;
  } catch {
    return null;
  }
}

const isSame = (a: unknown, b: unknown): boolean => JSON.stringify(a) === JSON.stringify(b);

const text = (value: object): string => `${JSON.stringify(value, null, 2)}\n`;

function makeFolder(folder: string): void {
  onDisk(wanted(folder), () => makeFolderNow(folder));
}

function write(file: string, content: string): void {
  onDisk(wanted(file), () => writeFileSync(file, content));
}

const wanted = (path: string): Wanted => ({
  op: `autotuning ${path}`,
  expected: 'a place that can be written',
  hint: 'autotuning.results_dir and exps_dir name the folders.',
});
