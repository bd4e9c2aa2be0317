// Runs the experiments of a search: jobs of the user's program, each with its result folder.

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
import { argumentError } from '../runtime/input-errors.js';
import { makeFolderNow } from '../runtime/make-folder.js';
import { type DiskOperation, onDisk } from '../runtime/on-disk.js';
import { applyValues, type ConfigArgument, type Mappings } from './program-arguments.js';
import type { Candidate } from './search-space.js';
import type { ExperimentResult } from './tuner.js';

type Settings = ResolvedConfig['autotuning'];

export interface JobEnd {
  /** Exit code in the shell's convention. */
  code: number;
  /** Whether the user interrupted this process. */
  isInterrupted: boolean;
}

/** Starts jobs of the user's program. */
export interface Jobs {
  /** GPUs (or CPU slots) per node, and nodes. */
  slots: number;
  nodes: number;
  /** Whether ranks also run on other machines, which cannot read this machine's files. */
  isRemote: boolean;
  /** Runs the program with `args`, and redirects its output to the two files. */
  run(args: readonly string[], logs: { out: string; err: string }): Promise<JobEnd>;
  /** The shell command that starts the program with `args`. */
  command(args: readonly string[]): string;
}

/** Thrown after the user interrupts the search. */
export class Interrupted extends Error {}

/**
 * Sections that experiments omit: monitors would write to the user's runs, and a profiled step is
 * slower.
 */
const MONITORS = ['tensorboard', 'csv_monitor', 'wandb', 'comet', 'flops_profiler'];

const FIRST_RUN = 'profile_model_info';

/**
 * A file that marks a folder of a search: a later search may delete the files of searches there.
 */
const MARKER_FILE = '.ds-autotuning';

/** The files of one experiment's folder. */
const EXPERIMENT_FILES = [
  'exp.json',
  'ds_config.json',
  'cmd.txt',
  'stdout.log',
  'stderr.log',
  'metrics.json',
  'metrics.json.part',
  'model_info.json',
  'model_info.json.part',
];

/** Number of last characters of standard error in which findFailure() searches for a reason. */
const TAIL = 2 ** 16;

/** The experiments of one search, and their results, in the folders of the settings. */
export class Experiments {
  readonly results: string;
  private readonly descriptions: string;

  /** Throws DS_IO, before any change, if a folder cannot be created or has other files. */
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
    folders.forEach(requireSearchFolder);
    for (const folder of folders) {
      makeFolder(folder);
      write(join(folder, MARKER_FILE), '');
    }
    if (settings.overwrite) this.clear();
  }

  /**
   * Returns the model and the memory, from a run that stops at its first forward.
   *
   * Throws DS_ARGUMENT if no run reaches its first forward.
   */
  async measureModel(configs: readonly Section[]): Promise<ModelInfo> {
    const folder = join(this.results, FIRST_RUN);
    const file = join(folder, 'model_info.json');
    let failure = '';
    for (const config of configs) {
      const section = { enabled: true, model_info_path: file, model_info: { profile: true } };
      const jobEnd = await this.runJob(
        FIRST_RUN,
        removeMonitors({ ...config, autotuning: section }),
      );
      const info = readJson<ModelInfo>(file);
      const reason = findFailure(folder, jobEnd, 'it ended before the first forward of an engine');
      // A run that is out of memory still reports enough of the model.
      if (info && (info.activation_mem_per_gpu !== null || reason.isShort)) return info;
      failure = reason.text;
      if (info) break;
    }
    throw argumentError(
      '--autotuning',
      'a program that trains with the given configuration',
      failure,
      `See its output in ${folder}.`,
    );
  }

  /** Runs `candidate`, or returns the stored result of an equal experiment. */
  async runCandidate(candidate: Candidate): Promise<ExperimentResult> {
    const { name } = candidate;
    const folder = join(this.results, name);
    const file = join(folder, 'metrics.json');
    const { start_profile_step, end_profile_step, metric, overwrite } = this.settings;
    const section = {
      enabled: true,
      start_profile_step,
      end_profile_step,
      metric,
      metric_path: file,
    };
    const config = removeMonitors({ ...candidate.config, autotuning: section });
    const hasStoredResult =
      !overwrite &&
      isSame(readJson(join(folder, 'exp.json')), this.describeExperiment(name, config));
    const storedMetrics = hasStoredResult ? readJson<ExperimentMetrics>(file) : null;
    if (storedMetrics) return { candidate, metrics: storedMetrics, failure: null, isShort: false };
    const jobEnd = await this.runJob(name, config);
    const metrics = readJson<ExperimentMetrics>(file);
    if (metrics) return { candidate, metrics, failure: null, isShort: false };
    const steps = end_profile_step + (metric === 'flops' ? 2 : 1);
    const reason = findFailure(folder, jobEnd, `it ended before step ${steps}`);
    return { candidate, metrics: null, failure: reason.text, isShort: reason.isShort };
  }

  /** Writes `config` as the best one. Returns its file and the program's arguments with it. */
  writeBest({ config }: Candidate): { file: string; args: readonly string[] } {
    const file = join(this.results, 'ds_config_optimal.json');
    write(file, toJson(config));
    const args = this.buildArguments(file, config);
    write(join(this.results, 'cmd_optimal.txt'), `${this.jobs.command(args)}\n`);
    return { file, args };
  }

  /** Writes summary.txt to the results folder. */
  writeSummary(summary: string): void {
    write(join(this.results, 'summary.txt'), summary);
  }

  private async runJob(name: string, config: Section): Promise<JobEnd> {
    const { jobs } = this;
    const folder = join(this.results, name);
    removeFiles(folder, EXPERIMENT_FILES);
    makeFolder(folder);
    const file = join(folder, 'ds_config.json');
    const experiment = this.describeExperiment(name, config);
    const { result_dir: _folder, user_args: args, ...description } = experiment;
    const logs = { out: join(folder, 'stdout.log'), err: join(folder, 'stderr.log') };
    write(join(this.descriptions, `${name}.json`), toJson(description));
    write(join(folder, 'exp.json'), toJson(experiment));
    write(file, toJson(config));
    for (const log of Object.values(logs)) write(log, '');
    write(join(folder, 'cmd.txt'), `${jobs.command(args)}\n`);
    const jobEnd = await jobs.run(args, logs);
    if (jobEnd.isInterrupted) throw new Interrupted();
    return jobEnd;
  }

  /** Returns the inputs that determine an experiment's result, except for the program. */
  private describeExperiment(name: string, config: Section) {
    const { slots: num_gpus, nodes: num_nodes } = this.jobs;
    const folder = join(this.results, name);
    const user_args = this.buildArguments(join(folder, 'ds_config.json'), config);
    return { name, ds_config: config, num_gpus, num_nodes, result_dir: folder, user_args };
  }

  /**
   * Returns the program's arguments with `config`. Other machines cannot read the file, so their
   * argument is the configuration itself, as in DeepSpeed's experiments.
   */
  private buildArguments(file: string, config: Section): string[] {
    const { args: _given, config: argument, mappings } = this.program;
    const word = this.jobs.isRemote
      ? Buffer.from(JSON.stringify(config)).toString('base64url')
      : file;
    return applyValues(argument.replaceFile(word), mappings, config);
  }

  /** Deletes the files of earlier searches, and no others. */
  private clear(): void {
    for (const name of readdirSync(this.results)) {
      const folder = join(this.results, name);
      if (!lstatSync(folder).isDirectory() || !existsSync(join(folder, 'exp.json'))) continue;
      removeFiles(folder, EXPERIMENT_FILES);
      if (readdirSync(folder).length === 0) rmdirSync(folder);
      removeFiles(this.descriptions, [`${name}.json`]);
    }
  }
}

/** Throws DS_IO if `folder` has files that are not from a search. */
function requireSearchFolder(folder: string): void {
  if (!existsSync(folder)) return;
  const names = onDisk(diskOperation(folder), () => readdirSync(folder));
  if (names.length === 0 || names.includes(MARKER_FILE)) return;
  throw new DsError({
    code: 'DS_IO',
    op: `autotuning ${folder}`,
    expected: 'a new folder, an empty folder, or the folder of an earlier search',
    got: `a folder with ${names[0]}${names.length > 1 ? ` and ${names.length - 1} more` : ''}`,
    hint: 'A search replaces files in its folders: set autotuning.results_dir and exps_dir.',
  });
}

function removeFiles(folder: string, names: readonly string[]): void {
  for (const name of names)
    onDisk(diskOperation(join(folder, name)), () => rmSync(join(folder, name), { force: true }));
}

/** Returns `config` without the monitor sections. */
function removeMonitors(config: Section): Section {
  return Object.fromEntries(Object.entries(config).filter(([key]) => !MONITORS.includes(key)));
}

/** Returns the reason why an experiment wrote no metric, and whether it ran out of memory. */
function findFailure(folder: string, { code }: JobEnd, early: string) {
  const errorTail = readTail(join(folder, 'stderr.log'));
  const isKilled = code === 137;
  const isShort = isKilled || /DS_OUT_OF_MEMORY|heap out of memory|out of memory/i.test(errorTail);
  // Removes the rank labels.
  const lines = errorTail.split('\n').map((line) => line.replace(/^\[[\d,-]+\] /, '').trim());
  const error = lines.find((line) => /^(\w*Error( \[\w+\])?|ds train): /.test(line));
  const ending = code === 0 ? early : `exit code ${code}${isKilled ? ', killed' : ''}`;
  return { isShort, text: error ? `${error.slice(0, 300)} (${ending})` : ending };
}

function readTail(file: string): string {
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

const toJson = (value: object): string => `${JSON.stringify(value, null, 2)}\n`;

function makeFolder(folder: string): void {
  onDisk(diskOperation(folder), () => makeFolderNow(folder));
}

function write(file: string, content: string): void {
  onDisk(diskOperation(file), () => writeFileSync(file, content));
}

const diskOperation = (path: string): DiskOperation => ({
  op: `autotuning ${path}`,
  expected: 'a writable path',
  hint: 'Set autotuning.results_dir and autotuning.exps_dir to writable folders.',
});
