// Measures parameters, MACs, FLOPs and latency of every module, under the names of DeepSpeed's API.

import { writeFileSync } from 'node:fs';
import { dirname } from 'node:path';
import { DsError } from '../errors.js';
import { Module } from '../nn/index.js';
import { requireModule } from '../nn/require-module.js';
import { cpu, type Device } from '../runtime/device.js';
import { formatValue } from '../runtime/format-value.js';
import { makeFolderNow } from '../runtime/make-folder.js';
import { onDisk } from '../runtime/on-disk.js';
import { namesOf, readOptions } from '../runtime/options.js';
import { requireInteger } from '../runtime/require-number.js';
import { requireType } from '../runtime/require-type.js';
import { noGrad, scope } from '../tensor/index.js';
import { createModelProfile, type ModelProfile, type StepFacts } from './profile.js';
import { Recorder } from './recorder.js';
import { formatProfile, type ReportOptions } from './report.js';

/** The target of a profile: an engine, or a model on the device of its parameters. */
export type Profiled = Module | { module: Module; device: Device };

/** The content and the destination of a printed profile. */
export interface PrintOptions extends ReportOptions {
  /** Output file instead of standard output, created with its folders. ".json" selects JSON. */
  outputFile?: string | null;
}

/**
 * Counts the model's work from startProfile() to stopProfile(), with no overhead otherwise. Totals
 * cover the forward passes, as in DeepSpeed. profile() also has the backward and the recomputation.
 *
 * Functions that return results wait for the device; profiling itself does not.
 */
export class FlopsProfiler {
  /** The profiled module. */
  readonly module: Module;
  /** Device of the module. */
  readonly device: Device;
  private recorder: Recorder | null = null;
  private active = false;

  /** `target`: an engine or a module. Throws DS_ARGUMENT for another value. */
  constructor(target: Profiled) {
    const bare = target instanceof Module;
    if (!bare) requireModule('FlopsProfiler', target?.module);
    this.module = bare ? target : target.module;
    this.device = bare ? (target.parameters()[0]?.device ?? cpu()) : target.device;
  }

  /** Whether a profile has started and not ended. */
  get started(): boolean {
    return this.recorder !== null;
  }

  /** Starts counting at zero. Throws DS_ARGUMENT while another profiler runs in this thread. */
  startProfile(): void {
    this.endProfile();
    const recorder = new Recorder(this.module, this.device);
    recorder.attach();
    this.recorder = recorder;
    this.active = true;
  }

  /** Stops counting, and keeps the results. */
  stopProfile(): void {
    if (this.active) this.recorder?.detach();
    this.active = false;
  }

  /** Restarts counting at zero, if a profile runs. */
  resetProfile(): void {
    if (!this.active) return;
    this.startProfile();
  }

  /** Stops counting, and drops the results. */
  endProfile(): void {
    this.stopProfile();
    this.recorder?.addLatencies();
    this.recorder = null;
  }

  /** Returns the floating-point operations of the forward passes. */
  getTotalFlops(): number {
    return this.profile().work.forward.flops;
  }

  /** Returns the multiply-accumulates of the forward passes. */
  getTotalMacs(): number {
    return this.profile().work.forward.macs;
  }

  /** Returns the device milliseconds of the model's forward calls. */
  getTotalDuration(): number {
    return this.profile().model.latencyMs;
  }

  /** Returns the number of parameters. Tied parameters count once. */
  getTotalParams(): number {
    return this.module.numParameters();
  }

  /**
   * Returns the counts so far, with the engine's step data in `engine`. Waits for the device.
   *
   * Throws DS_ARGUMENT before startProfile().
   */
  profile(engine: StepFacts | null = null): ModelProfile {
    const { recorder } = this;
    if (!recorder) {
      throw new DsError({
        code: 'DS_ARGUMENT',
        op: 'FlopsProfiler',
        expected: 'startProfile() before a result, endProfile() after it',
        got: 'no profile',
      });
    }
    recorder.addLatencies();
    return createModelProfile(recorder.tree.root, this.device.name, engine);
  }

  /**
   * Prints the counts so far. Throws DS_ARGUMENT before startProfile(), DS_IO if the output file
   * cannot be written.
   */
  printModelProfile(options: PrintOptions = {}, engine: StepFacts | null = null): void {
    printProfile(this.profile(engine), options);
  }
}

/**
 * Prints a profile, or writes it to `outputFile`.
 *
 * Throws DS_ARGUMENT for unknown or invalid options, DS_IO if the file cannot be written.
 */
export function printProfile(profile: ModelProfile, options: PrintOptions = {}): void {
  const { outputFile, ...report } = readOptions('printProfile', options, namesOf.PrintOptions);
  if (outputFile) requireType('printProfile outputFile', outputFile, 'string');
  if (!outputFile) {
    process.stdout.write(`${formatProfile(profile, report)}\n`);
    return;
  }
  const json = outputFile.endsWith('.json');
  const text = json ? JSON.stringify(profile, null, 2) : formatProfile(profile, report);
  onDisk({ op: outputFile, expected: 'a writable file for the profile' }, () => {
    makeFolderNow(dirname(outputFile));
    writeFileSync(outputFile, `${text}\n`);
  });
}

/** Options of getModelProfile(). */
export interface ModelProfileOptions extends PrintOptions {
  /** Whether to print the profile. Default: true, as in DeepSpeed. */
  printProfile?: boolean;
  /** Forward passes before the profiled one. Default: 1. */
  warmUp?: number;
}

/** The result of getModelProfile(). */
export interface ForwardProfile {
  /** Floating-point operations of the pass. */
  flops: number;
  /** Multiply-accumulates of the pass. */
  macs: number;
  /** Elements of the model's parameters. */
  parameters: number;
  /** The text of formatProfile(). */
  table: string;
  /** The profile by module. */
  json: ModelProfile;
}

/**
 * Profiles one forward pass of `model` with `inputs`, without gradients. Named after DeepSpeed's
 * get_model_profile.
 *
 * Throws the model's errors, DS_ARGUMENT for unknown or invalid options, DS_IO if the output file
 * cannot be written.
 */
export function getModelProfile(
  model: Module,
  inputs: readonly unknown[],
  options: ModelProfileOptions = {},
): ForwardProfile {
  requireModule('getModelProfile', model);
  if (!Array.isArray(inputs)) {
    throw new DsError({
      code: 'DS_ARGUMENT',
      op: 'getModelProfile inputs',
      expected: 'a list of the arguments of model.call()',
      got: formatValue(inputs),
      hint: 'Write getModelProfile(model, [tokens], options).',
    });
  }
  const read = readOptions('getModelProfile', options, namesOf.ModelProfileOptions);
  const { printProfile: print = true, warmUp = 1, outputFile, ...report } = read;
  requireInteger('getModelProfile warmUp', warmUp, 0);
  const call = model.call as (...given: readonly unknown[]) => unknown;
  const run = (): void => scope(() => noGrad(() => void call.apply(model, [...inputs])));
  for (let pass = 0; pass < warmUp; ++pass) run();
  const profiler = new FlopsProfiler(model);
  profiler.startProfile();
  try {
    run();
    const json = profiler.profile();
    if (print) printProfile(json, { ...report, outputFile });
    const { flops, macs } = json.work.forward;
    return { flops, macs, parameters: json.parameters, table: formatProfile(json, report), json };
  } finally {
    profiler.endProfile();
  }
}
