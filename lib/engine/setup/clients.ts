// The options of initialize(), and checks of the objects that a caller passes.
import type { ResolvedConfig } from '../../../types/config.js';
import type { Distributed } from '../../comm/index.js';
import type { Monitor } from '../../monitor/index.js';
import type { Module } from '../../nn/module.js';
import type { Optimizer } from '../../optim/optimizer.js';
import type { ParamGroup, ParamsOf } from '../../optim/param-groups.js';
import type { LrSchedule } from '../../optim/schedule.js';
import { formatValue } from '../../runtime/format-value.js';
import { argumentError } from '../../runtime/input-errors.js';
import { isObject } from '../../runtime/is-object.js';
import type { CommTimer } from '../../zero/gradients.js';

/**
 * Objects that the caller passes to initialize(). Each replaces the object that the configuration
 * describes.
 */
export interface Clients {
  /** Parameters to train, or groups of them. Default: every parameter that requires a gradient. */
  modelParameters?: ParamsOf<ParamGroup>;
  /**
   * An optimizer, or a function that returns one for the parameters. Default: the optimizer of the
   * configuration.
   */
  optimizer?: Optimizer | ((params: ParamsOf<ParamGroup>) => Optimizer);
  /**
   * One schedule for all groups, one per group, or a function that returns them. Default: the
   * scheduler of the configuration.
   */
  lrScheduler?: LrSchedule | ((optimizer: Optimizer) => LrSchedule | readonly LrSchedule[]);
  /**
   * The job of the training ranks. Default: the job of initDistributed(), else this process only.
   */
  distributed?: Distributed | null;
  /** @internal Measures the collectives of training. For benchmarks. */
  commTimer?: CommTimer;
  /** Monitors in addition to the configuration's. engine.destroy() closes them. */
  monitors?: readonly Monitor[];
  /** Signals that set engine.stopRequested. Default: SIGINT, SIGTERM and SIGHUP. []: none. */
  stopSignals?: readonly NodeJS.Signals[];
}

/** The values "auto" of a configuration, and the candidates for them. */
export interface Planned {
  /** Dotted paths of the keys with "auto". */
  readonly keys: ReadonlySet<string>;
  /** All candidates. */
  readonly configs: readonly [ResolvedConfig, ...ResolvedConfig[]];
  /** Tokens per sample; undefined if unknown. */
  readonly sequenceLength: number | undefined;
}

/** The inputs of buildEngine(). */
export interface BuildInputs {
  module: Module;
  /** The configuration. If the plan chooses values, its first candidate. */
  config: ResolvedConfig;
  clients: Clients;
  job: Distributed;
  /** The values that the plan chooses. Null without a plan. */
  planned: Planned | null;
}

/** Throws DS_ARGUMENT unless `monitors` is a list of objects with the methods of Monitor. */
export function requireMonitors(monitors: unknown): void {
  if (monitors === undefined) return;
  const op = 'initialize monitors';
  if (!Array.isArray(monitors))
    throw argumentError(op, 'a list of monitors', formatValue(monitors));
  for (const monitor of monitors)
    requireMethods(op, monitor, 'a monitor', ['write', 'flush', 'close']);
}

/** Throws DS_ARGUMENT if the caller's object lacks a method. The object may be of any class. */
export function requireMethods(
  op: string,
  value: unknown,
  kind: string,
  names: readonly string[],
  hint = '',
): void {
  const missing = names.filter((name) => !isObject(value) || typeof value[name] !== 'function');
  if (missing.length === 0) return;
  const expected = `${kind}, with ${names.map((name) => `${name}()`).join(', ')}`;
  throw argumentError(op, expected, formatValue(value), hint);
}

/** Calls a function of the caller. Throws DS_ARGUMENT if it is a class, which needs `new`. */
export function callFactory<Given, Made>(
  op: string,
  make: (given: Given) => Made,
  given: Given,
): Made {
  if (!/^class\b/.test(Function.prototype.toString.call(make))) return make(given);
  throw argumentError(
    op,
    'an object, or a function that returns one',
    `the class ${make.name}`,
    `Pass new ${make.name}(..), or (given) => new ${make.name}(given, ..).`,
  );
}

/** Throws DS_ARGUMENT if `job` is no result of initDistributed(). */
export function requireJob(job: unknown): void {
  if (job === undefined || job === null) return;
  if (isObject(job) && Number.isInteger(job.rank) && Number.isInteger(job.worldSize)) return;
  throw argumentError('initialize distributed', 'a job from initDistributed()', formatValue(job));
}
