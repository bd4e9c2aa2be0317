// What a caller of initialize() brings beside the configuration, and how it meets what the
// configuration says.
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

/** Each wins over what the file says. */
export interface Clients {
  /**
   * Parameters to train, or groups of them. Default: every parameter of the model that wants a
   * gradient.
   */
  modelParameters?: ParamsOf<ParamGroup>;
  /**
   * An optimizer, or a function that makes one of the parameters to train. Default: the
   * configuration's.
   */
  optimizer?: Optimizer | ((params: ParamsOf<ParamGroup>) => Optimizer);
  /** One schedule for all groups, or a function that gives one, or one per group. */
  lrScheduler?: LrSchedule | ((optimizer: Optimizer) => LrSchedule | readonly LrSchedule[]);
  /**
   * The job whose ranks train together. Default: what initDistributed() has joined, else this
   * process alone.
   */
  distributed?: Distributed | null;
  /** @internal Times the collectives of training; benchmarks pass one. */
  commTimer?: CommTimer;
  /** Monitors of your own, beside those of the configuration; engine.destroy() closes them. */
  monitors?: readonly Monitor[];
  /** What engine.stopRequested listens to. Default: SIGINT, SIGTERM and SIGHUP; none with []. */
  stopSignals?: readonly NodeJS.Signals[];
}

/** Throws DS_ARGUMENT for monitors that are no list of what has Monitor's methods. */
export function requireMonitors(monitors: unknown): void {
  if (monitors === undefined) return;
  const op = 'initialize monitors';
  if (!Array.isArray(monitors)) {
    const got = formatValue(monitors);
    throw new DsError({ code: 'DS_ARGUMENT', op, expected: 'a list of monitors', got });
  }
  for (const one of monitors) requireMethods(op, one, 'a monitor', ['write', 'flush', 'close']);
}

/** Throws DS_ARGUMENT where a caller's object, of a class of its own maybe, lacks a method. */
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

/** Throws DS_ARGUMENT where an optimizer of the caller's has no groups. */
function requireGroups(op: string, groups: unknown): void {
  const isGroup = (one: unknown): boolean =>
    typeof one === 'object' && one !== null && Array.isArray((one as Partial<ParamGroup>).params);
  if (Array.isArray(groups) && groups.length > 0 && groups.every(isGroup)) return;
  const expected = 'an optimizer whose groups are a list of { params, .. }, with one at least';
  throw new DsError({ code: 'DS_ARGUMENT', op, expected, got: formatValue(groups) });
}

/**
 * What a caller's function makes of `given`. Throws DS_ARGUMENT for a class, which only `new`
 * calls.
 */
function madeBy<Given, Made>(op: string, make: (given: Given) => Made, given: Given): Made {
  if (!/^class\b/.test(Function.prototype.toString.call(make))) return make(given);
  throw new DsError({
    code: 'DS_ARGUMENT',
    op,
    expected: 'an object, or a function that makes one',
    got: `the class ${make.name}`,
    hint: `Pass new ${make.name}(..), or (given) => new ${make.name}(given, ..).`,
  });
}

/** Throws DS_ARGUMENT for what is none of the jobs that initDistributed() joins. */
export function requireJob(job: unknown): void {
  if (job === undefined || job === null) return;
  const { rank, worldSize } = job as Partial<Distributed>;
  if (Number.isInteger(rank) && Number.isInteger(worldSize)) return;
  throw new DsError({
    code: 'DS_ARGUMENT',
    op: 'initialize distributed',
    expected: 'a job, as initDistributed() gives it',
    got: formatValue(job),
  });
}

/**
 * The caller's optimizer, or that of the configuration; at stage 3, where weights come for a
 * forward and go, none is one that trains nothing. Throws DS_CONFIG where nobody names one
 * elsewhere, DS_ARGUMENT for wrong groups and where nothing is to be trained.
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

/** Throws DS_CONFIG where the caller's optimizer keeps a value of a parameter in more than bf16. */
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
        got: `${optimizer.name}, which keeps ${name} in f32`,
        hint: 'Make it by new optim.AdamW(params, { fp32OptimizerStates: false }), or set bf16_optimizer_states to false.',
      });
    }
  }
}

/**
 * Throws DS_ARGUMENT for an optimizer with state of its own, which the engine would not take over.
 */
function unused(optimizer: Optimizer): Optimizer {
  if (!(optimizer instanceof StandaloneOptimizer && optimizer.hasStepped)) return optimizer;
  throw new DsError({
    code: 'DS_ARGUMENT',
    op: 'initialize optimizer',
    expected: 'an optimizer that has taken no step',
    got: `${optimizer.name} with state of its own, which an engine would lose`,
    hint: 'Make a new one, or call its dispose() to start from fresh state.',
  });
}

/**
 * The caller's schedules, or those of the configuration; none is fine. Throws DS_CONFIG and
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
  'An engine advances schedules itself: pass what the LrScheduler was given, such as `({ groups }) => groups.map(({ lr }) => new optim.LinearLr({ baseLr: lr }))`.';
const OF_OWN =
  'Take one of optim; new optim.LambdaLr({ baseLr, factor: (updates) => .. }) is any function of the updates.';

function isList<T>(value: T | readonly T[]): value is readonly T[] {
  return Array.isArray(value);
}

function untrainable(module: Module): DsError {
  const count = module.parameters().length;
  return new DsError({
    code: 'DS_ARGUMENT',
    op: 'initialize',
    expected: 'a model with a parameter that wants a gradient',
    got: count === 0 ? 'one without parameters' : `one whose ${count} parameters are all frozen`,
    hint: count === 0 ? '' : 'Call requireGrad(true) on those to train.',
  });
}
