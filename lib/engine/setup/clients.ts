// Reads the caller's options of initialize() and combines them with the configuration.
import type { ResolvedConfig } from '../../../types/config.js';
import type { Distributed } from '../../comm/index.js';
import { DsError } from '../../errors.js';
import type { Monitor } from '../../monitor/index.js';
import type { Module } from '../../nn/module.js';
import { LrScheduler } from '../../optim/lr-scheduler.js';
import type { Optimizer } from '../../optim/optimizer.js';
import type { ParamGroup, ParamsOf } from '../../optim/param-groups.js';
import type { LrSchedule } from '../../optim/schedule.js';
import { ScheduleSet } from '../../optim/schedule-set.js';
import { StandaloneOptimizer } from '../../optim/standalone.js';
import { formatValue } from '../../runtime/format-value.js';
import type { CommTimer } from '../../zero/exchange.js';
import { buildOptimizer } from './optimizer.js';
import { buildSchedules } from './schedule.js';
import { NoOptimizer } from './untrained.js';

/** Options of the caller. Each overrides the configuration. */
export interface Clients {
  /** Parameters to train, or groups of them. Default: every parameter that requires a gradient. */
  modelParameters?: ParamsOf<ParamGroup>;
  /**
   * An optimizer, or a function from the parameters to an optimizer. Default: the configuration's.
   */
  optimizer?: Optimizer | ((params: ParamsOf<ParamGroup>) => Optimizer);
  /** One schedule for all groups, one per group, or a function that returns them. */
  lrScheduler?: LrSchedule | ((optimizer: Optimizer) => LrSchedule | readonly LrSchedule[]);
  /**
   * The job of the training ranks. Default: the job of initDistributed(), else only this process.
   */
  distributed?: Distributed | null;
  /** @internal Measures the collectives of training, for benchmarks. */
  commTimer?: CommTimer;
  /** Monitors in addition to those of the configuration. engine.destroy() closes them. */
  monitors?: readonly Monitor[];
  /** Signals for engine.stopRequested. Default: SIGINT, SIGTERM and SIGHUP. [] disables them. */
  stopSignals?: readonly NodeJS.Signals[];
}

/** Throws DS_ARGUMENT unless `monitors` is a list of objects with the methods of Monitor. */
export function requireMonitors(monitors: unknown): void {
  if (monitors === undefined) return;
  const op = 'initialize monitors';
  if (!Array.isArray(monitors)) {
    const got = formatValue(monitors);
    throw new DsError({ code: 'DS_ARGUMENT', op, expected: 'a list of monitors', got });
  }
  for (const one of monitors) requireMethods(op, one, 'a monitor', ['write', 'flush', 'close']);
}

/** Throws DS_ARGUMENT if the caller's object lacks a method. It may be of any class. */
function requireMethods(
  op: string,
  one: unknown,
  kind: string,
  names: readonly string[],
  hint = '',
): void {
  const held = (typeof one === 'object' && one) as Record<string, unknown> | null;
  const missing = names.filter((name) => typeof held?.[name] !== 'function');
  if (missing.length === 0) return;
  const expected = `${kind}, with ${names.map((name) => `${name}()`).join(', ')}`;
  throw new DsError({ code: 'DS_ARGUMENT', op, expected, got: formatValue(one), hint });
}

/** Throws DS_ARGUMENT if the caller's optimizer has no groups. */
function requireGroups(op: string, groups: unknown): void {
  const isGroup = (one: unknown): boolean =>
    typeof one === 'object' && one !== null && Array.isArray((one as Partial<ParamGroup>).params);
  if (Array.isArray(groups) && groups.length > 0 && groups.every(isGroup)) return;
  const expected = 'an optimizer with groups: a list of at least one { params, .. }';
  throw new DsError({ code: 'DS_ARGUMENT', op, expected, got: formatValue(groups) });
}

/** Calls the caller's function. Throws DS_ARGUMENT for a class, because it needs `new`. */
function madeBy<Given, Made>(op: string, make: (given: Given) => Made, given: Given): Made {
  if (!/^class\b/.test(Function.prototype.toString.call(make))) return make(given);
  throw new DsError({
    code: 'DS_ARGUMENT',
    op,
    expected: 'an object, or a function that returns one',
    got: `the class ${make.name}`,
    hint: `Pass new ${make.name}(..), or (given) => new ${make.name}(given, ..).`,
  });
}

/** Throws DS_ARGUMENT if `job` does not come from initDistributed(). */
export function requireJob(job: unknown): void {
  if (job === undefined || job === null) return;
  const { rank, worldSize } = job as Partial<Distributed>;
  if (Number.isInteger(rank) && Number.isInteger(worldSize)) return;
  throw new DsError({
    code: 'DS_ARGUMENT',
    op: 'initialize distributed',
    expected: 'a job from initDistributed()',
    got: formatValue(job),
  });
}

/**
 * Returns the optimizer of the caller, else of the configuration. At stage 3 without either,
 * returns NoOptimizer, which only gathers weights for forwards. Throws DS_CONFIG without an
 * optimizer at other stages, and DS_ARGUMENT for invalid groups or without trainable parameters.
 */
export function findOptimizer(
  module: Module,
  { optimizer: section, zero_optimization: { stage }, bf16 }: ResolvedConfig,
  { optimizer, modelParameters }: Clients,
): Optimizer {
  if (!optimizer && !section && !modelParameters && stage === 3) return new NoOptimizer();
  const { bf16_optimizer_states: bf16States } = bf16;
  const own = (one: Optimizer): Optimizer => {
    const op = 'initialize optimizer';
    requireMethods(op, one, 'an optimizer', ['declareState', 'update']);
    requireGroups(op, one.groups);
    if (bf16States) requireBf16States(one);
    return unused(one);
  };
  if (optimizer && typeof optimizer !== 'function') return own(optimizer);
  const trainable = module.parameters().filter(({ requiresGrad }) => requiresGrad);
  if (!modelParameters && trainable.length === 0) throw untrainable(module);
  const params = modelParameters ?? trainable;
  return optimizer
    ? own(madeBy('initialize optimizer', optimizer, params))
    : buildOptimizer(section, params, { named: module.namedParameters(), bf16States });
}

/** Throws DS_CONFIG if the caller's optimizer stores per-parameter state in f32. */
function requireBf16States(optimizer: Optimizer): void {
  for (const [group, { params }] of optimizer.groups.entries()) {
    for (const { shape } of params) {
      const declared = Object.entries(optimizer.declareState(group, shape));
      const [name, wide] = declared.find(([, { dtype }]) => dtype === 'f32') ?? [];
      if (!wide) continue;
      throw new DsError({
        code: 'DS_CONFIG',
        op: 'bf16.bf16_optimizer_states',
        expected: 'an optimizer with its state in bf16',
        got: `${optimizer.name} with ${name} in f32`,
        hint: 'Use new optim.AdamW(params, { fp32OptimizerStates: false }), or set bf16_optimizer_states to false.',
      });
    }
  }
}

/** Throws DS_ARGUMENT for an optimizer with its own state, because the engine would drop it. */
function unused(optimizer: Optimizer): Optimizer {
  if (!(optimizer instanceof StandaloneOptimizer && optimizer.hasStepped)) return optimizer;
  throw new DsError({
    code: 'DS_ARGUMENT',
    op: 'initialize optimizer',
    expected: 'an optimizer without steps',
    got: `${optimizer.name} with its own state, which the engine would drop`,
    hint: 'Create a new optimizer, or call dispose() on it to drop its state.',
  });
}

/**
 * Returns the schedules of the caller, else of the configuration. May be empty. Throws DS_CONFIG,
 * DS_ARGUMENT.
 */
export function findSchedules(
  { scheduler }: ResolvedConfig,
  optimizer: Optimizer,
  { lrScheduler }: Clients,
): ScheduleSet {
  const { groups } = optimizer;
  const op = 'initialize lrScheduler';
  if (!lrScheduler) return buildSchedules(scheduler, groups);
  const given =
    typeof lrScheduler === 'function' ? madeBy(op, lrScheduler, optimizer) : lrScheduler;
  for (const one of isList(given) ? given : [given]) {
    const methods = ['lr', 'apply', 'stateDict', 'loadStateDict'];
    requireMethods(op, one, 'a schedule', methods, one instanceof LrScheduler ? INSIDE : OF_OWN);
  }
  if (!isList(given)) return new ScheduleSet(groups.map(() => given));
  if (given.length === groups.length) return new ScheduleSet(given);
  throw new DsError({
    code: 'DS_ARGUMENT',
    op,
    expected: `a schedule, or one for each of ${groups.length} groups`,
    got: `${given.length} schedules`,
  });
}

const INSIDE =
  'The engine advances schedules. Pass the argument of LrScheduler, such as `({ groups }) => groups.map(({ lr }) => new optim.LinearLr({ baseLr: lr }))`.';
const OF_OWN =
  'Use a schedule of optim. For any function of the updates: new optim.LambdaLr({ baseLr, factor: (updates) => .. }).';

function isList<T>(value: T | readonly T[]): value is readonly T[] {
  return Array.isArray(value);
}

function untrainable(module: Module): DsError {
  const count = module.parameters().length;
  return new DsError({
    code: 'DS_ARGUMENT',
    op: 'initialize',
    expected: 'a model with a parameter that requires a gradient',
    got: count === 0 ? 'a model without parameters' : `a model with ${count} frozen parameters`,
    hint: count === 0 ? '' : 'Call requireGrad(true) on the parameters to train.',
  });
}
