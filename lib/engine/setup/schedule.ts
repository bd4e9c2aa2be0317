// Finds the learning-rate schedules of an engine: the caller's, or the configuration's section
// "scheduler".
import type { ResolvedConfig, ResolvedScheduler } from '../../../types/config.js';
import type { DsError } from '../../errors.js';
import * as optim from '../../optim/index.js';
import { LrScheduler } from '../../optim/lr-scheduler.js';
import type { Optimizer } from '../../optim/optimizer.js';
import type { ParamGroup } from '../../optim/param-groups.js';
import type { LrSchedule } from '../../optim/schedule.js';
import { ScheduleSet } from '../../optim/schedule-set.js';
import { argumentError, configError } from '../../runtime/input-errors.js';
import { notice } from '../../runtime/notice.js';
import { camelCase } from '../../runtime/options.js';
import { type BuildInputs, type Clients, callFactory, requireMethods } from './clients.js';

/**
 * Returns the schedules of the caller, else of the configuration. May be empty. Rank 0 emits
 * notices about settings without effect. Throws DS_CONFIG or DS_ARGUMENT.
 */
export function findSchedules(inputs: BuildInputs, optimizer: Optimizer): ScheduleSet {
  const { config, clients, job } = inputs;
  const schedules = createSchedules(config, optimizer, clients);
  if (job.rank !== 0) return schedules;
  const unused = clients.lrScheduler ? null : unusedRates(config.scheduler, optimizer.groups);
  for (const text of [unused, idleMomentum(schedules, optimizer)]) if (text) notice(text);
  return schedules;
}

function createSchedules(
  { scheduler }: ResolvedConfig,
  optimizer: Optimizer,
  { lrScheduler }: Clients,
): ScheduleSet {
  const { groups } = optimizer;
  const op = 'initialize lrScheduler';
  if (!lrScheduler) return buildSchedules(scheduler, groups);
  const fromCaller =
    typeof lrScheduler === 'function' ? callFactory(op, lrScheduler, optimizer) : lrScheduler;
  for (const schedule of isList(fromCaller) ? fromCaller : [fromCaller]) {
    const methods = ['lr', 'apply', 'stateDict', 'loadStateDict'];
    const uses = schedule instanceof LrScheduler ? ADVANCED_BY_ENGINE : OWN_SCHEDULE;
    requireMethods(op, schedule, 'a schedule', methods, uses);
  }
  if (!isList(fromCaller)) return new ScheduleSet(groups.map(() => fromCaller));
  if (fromCaller.length === groups.length) return new ScheduleSet(fromCaller);
  const expected = `a schedule, or one for each of ${groups.length} groups`;
  throw argumentError(op, expected, `${fromCaller.length} schedules`);
}

const ADVANCED_BY_ENGINE =
  'The engine advances schedules. Pass the argument of LrScheduler, such as `({ groups }) => groups.map(({ lr }) => new optim.LinearLr({ baseLr: lr }))`.';
const OWN_SCHEDULE =
  'Use a schedule of optim. For any function of the updates: new optim.LambdaLr({ baseLr, factor: (updates) => .. }).';

function isList<T>(value: T | readonly T[]): value is readonly T[] {
  return Array.isArray(value);
}

/** Parameters of a schedule that are themselves lists. Other lists have one value per group. */
const wholeLists: ReadonlySet<string> = new Set(['milestones']);

/** Builds one schedule per group. Throws DS_CONFIG if a list does not have one value per group. */
export function buildSchedules(
  scheduler: ResolvedScheduler | null,
  groups: readonly ParamGroup[],
): ScheduleSet {
  if (!scheduler) return new ScheduleSet([]);
  const { length } = groups;
  const schedules = groups.map(({ lr }, group) =>
    builders[scheduler.type](optionsOf(scheduler, group, length), lr),
  );
  return new ScheduleSet(schedules);
}

/**
 * By schedule type: the key that sets the learning rate, if the schedule does not use the rate of
 * the group.
 */
const PEAKS: Partial<Record<ResolvedScheduler['type'], string>> = {
  WarmupLR: 'warmup_max_lr',
  WarmupDecayLR: 'warmup_max_lr',
  OneCycle: 'cycle_max_lr',
  LRRangeTest: 'lr_range_test_min_lr',
};

/**
 * Returns a notice if groups have different learning rates, but `scheduler` sets one rate for all.
 */
function unusedRates(
  scheduler: ResolvedScheduler | null,
  groups: readonly ParamGroup[],
): string | null {
  if (!scheduler) return null;
  const { type, params } = scheduler;
  const key = PEAKS[type];
  const peak = key && Object.entries(params).find(([name]) => name === key)?.[1];
  const rates = groups.map(({ lr }) => lr);
  if (typeof peak !== 'number' || new Set(rates).size < 2) return null;
  return (
    `scheduler.params.${key} is ${peak} for all parameter groups. The learning rates of the groups, ` +
    `${rates.join(', ')}, have no effect with ${type}. Write a list with one value per group.`
  );
}

/**
 * Returns a notice if OneCycle schedules betas that the optimizer does not have. DeepSpeed warns
 * too.
 */
function idleMomentum({ schedules }: ScheduleSet, { name, groups }: Optimizer): string | null {
  const isIdle = groups.some(({ betas }, group) => {
    const schedule = schedules[group];
    return !betas && schedule instanceof optim.OneCycle && schedule.momentum(0) !== null;
  });
  return isIdle
    ? `cycle_momentum of OneCycle has no effect on ${name} without betas. Set it to false.`
    : null;
}

/** Returns the options of one group's schedule. */
function optionsOf({ params }: ResolvedScheduler, group: number, groups: number) {
  const acting = Object.entries(params).filter(([key]) => key !== IDLE);
  const own = acting.map(([key, value]) => {
    const name = OPTIONS[key] ?? camelCase(key);
    if (!Array.isArray(value) || wholeLists.has(key)) return [name, value];
    if (value.length !== groups) throw wrongLengthError(key, value, groups);
    return [name, value[group]];
  });
  return Object.fromEntries(own) as Record<string, unknown>;
}

function wrongLengthError(key: string, values: readonly unknown[], groups: number): DsError {
  return configError(
    `scheduler.params.${key}`,
    `a number, or one for each parameter group: ${groups}`,
    `${values.length}: ${JSON.stringify(values)}`,
    'Write one number for all groups, or as many as the optimizer has groups.',
  );
}

/** A key of DeepSpeed that has no effect here. */
const IDLE = 'last_batch_iteration';

/** By key: the option, if it is not the key in camelCase. */
const OPTIONS: Readonly<Record<string, string>> = {
  warmup_min_lr: 'minLr',
  warmup_max_lr: 'maxLr',
  warmup_num_steps: 'warmupSteps',
  total_num_steps: 'totalSteps',
  total_iters: 'totalSteps',
  eta_min: 'minLr',
  cycle_min_lr: 'minLr',
  cycle_max_lr: 'maxLr',
  cycle_first_step_size: 'firstStepSize',
  cycle_second_step_size: 'secondStepSize',
  cycle_first_stair_count: 'firstStairCount',
  cycle_second_stair_count: 'secondStairCount',
  cycle_min_mom: 'minMomentum',
  cycle_max_mom: 'maxMomentum',
  decay_mom_rate: 'decayMomentumRate',
  lr_range_test_min_lr: 'minLr',
  lr_range_test_step_size: 'stepSize',
  lr_range_test_step_rate: 'stepRate',
  lr_range_test_staircase: 'staircase',
  T_max: 'halfPeriod',
  T_0: 'firstPeriod',
  T_mult: 'growth',
};

type Builder = (options: Record<string, unknown>, baseLr: number) => LrSchedule;

/** Builds a schedule that sets its own learning rate. */
const buildPlain =
  (Class: new (options: never) => LrSchedule): Builder =>
  (options) =>
    new Class(options as never);

/** Builds a schedule relative to the learning rate of the group. */
const buildRelative =
  (Class: new (options: never) => LrSchedule): Builder =>
  (options, baseLr) =>
    new Class({ baseLr, ...options } as never);

/** Builds a schedule with the option `steps` in place of `totalSteps`. */
const buildWithSteps =
  (Class: new (options: never) => LrSchedule): Builder =>
  ({ totalSteps: steps, ...rest }, baseLr) =>
    new Class({ baseLr, steps, ...rest } as never);

const builders: { [Type in ResolvedScheduler['type']]: Builder } = {
  WarmupLR: ({ maxLr, ...rest }, baseLr) =>
    new optim.WarmupLr({ ...rest, maxLr: (maxLr as number | null) ?? baseLr }),
  WarmupDecayLR: buildPlain(optim.WarmupDecayLr),
  WarmupCosineLR: buildRelative(optim.WarmupCosineLr),
  OneCycle: buildPlain(optim.OneCycle),
  LRRangeTest: buildPlain(optim.LrRangeTest),
  CosineAnnealingLR: buildRelative(optim.CosineAnnealingLr),
  StepLR: buildRelative(optim.StepLr),
  ExponentialLR: buildRelative(optim.ExponentialLr),
  PolynomialLR: buildRelative(optim.PolynomialLr),
  ConstantLR: buildWithSteps(optim.ConstantLr),
  MultiStepLR: buildRelative(optim.MultiStepLr),
  LinearLR: buildWithSteps(optim.LinearLr),
  CosineAnnealingWarmRestarts: buildRelative(optim.CosineAnnealingWarmRestarts),
  ReduceLROnPlateau: buildRelative(optim.ReduceLrOnPlateau),
};
