// Creates the learning-rate schedules of the section "scheduler".
import type { ResolvedScheduler } from '../../../types/config.js';
import { DsError } from '../../errors.js';
import { ConstantLr } from '../../optim/constant.js';
import { CosineAnnealingLr } from '../../optim/cosine-annealing.js';
import { ExponentialLr } from '../../optim/exponential.js';
import { LinearLr } from '../../optim/linear.js';
import { MultiStepLr } from '../../optim/multi-step.js';
import { OneCycle } from '../../optim/one-cycle.js';
import type { Optimizer } from '../../optim/optimizer.js';
import type { ParamGroup } from '../../optim/param-groups.js';
import { PolynomialLr } from '../../optim/polynomial.js';
import { LrRangeTest } from '../../optim/range-test.js';
import { ReduceLrOnPlateau } from '../../optim/reduce-on-plateau.js';
import type { LrSchedule } from '../../optim/schedule.js';
import { ScheduleSet } from '../../optim/schedule-set.js';
import { StepLr } from '../../optim/step-decay.js';
import { CosineAnnealingWarmRestarts } from '../../optim/warm-restarts.js';
import { WarmupLr } from '../../optim/warmup.js';
import { WarmupCosineLr } from '../../optim/warmup-cosine.js';
import { WarmupDecayLr } from '../../optim/warmup-decay.js';

/** Parameters that are lists themselves. */
const wholeLists: ReadonlySet<string> = new Set(['milestones']);

/** Params without lists of one value per group. */
type OfGroup<P> = {
  [Key in keyof P]: Key extends 'milestones' ? P[Key] : Exclude<P[Key], readonly number[]>;
};

/** The params of each schedule type, for one group. */
type Params = { [S in ResolvedScheduler as S['type']]: OfGroup<S['params']> };

type GroupScheduler = {
  [Type in keyof Params]: { type: Type; params: Params[Type] };
}[keyof Params];

/** Returns a schedule for a group with learning rate `baseLr`. */
type Builder<Type extends keyof Params> = (params: Params[Type], baseLr: number) => LrSchedule;

/**
 * Returns a schedule for each group of the optimizer; an empty set without a section. Throws
 * DS_CONFIG if a list does not have one value per group.
 */
export function buildSchedules(
  scheduler: ResolvedScheduler | null,
  groups: readonly ParamGroup[],
): ScheduleSet {
  if (!scheduler) return new ScheduleSet([]);
  const { length } = groups;
  const schedules = groups.map(({ lr }, group) => build(ofGroup(scheduler, group, length), lr));
  return new ScheduleSet(schedules);
}

/** The key of the learning rate in schedules that define their own. */
const PEAKS: Partial<Record<keyof Params, string>> = {
  ...{ WarmupLR: 'warmup_max_lr', WarmupDecayLR: 'warmup_max_lr' },
  ...{ OneCycle: 'cycle_max_lr', LRRangeTest: 'lr_range_test_min_lr' },
};

/**
 * Returns a notice if the groups have different learning rates, but `scheduler` sets one for all;
 * else null.
 */
export function unusedRates(
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
 * Returns a notice if OneCycle would schedule the momentum of an optimizer without betas; else
 * null. Source: DeepSpeed, which warns too.
 */
export function idleMomentum(
  { schedules }: ScheduleSet,
  { name, groups }: Optimizer,
): string | null {
  const isIdle = groups.some(({ betas }, group) => {
    const schedule = schedules[group];
    return !betas && schedule instanceof OneCycle && schedule.momentum(0) !== null;
  });
  return isIdle
    ? `cycle_momentum of OneCycle has no effect on ${name} without betas. Set it to false.`
    : null;
}

function ofGroup({ type, params }: ResolvedScheduler, group: number, groups: number) {
  const own = Object.entries(params).map(([key, value]) => {
    if (!Array.isArray(value) || wholeLists.has(key)) return [key, value];
    if (value.length !== groups) throw wrongLength(key, value, groups);
    return [key, value[group]];
  });
  return { type, params: Object.fromEntries(own) } as GroupScheduler;
}

function wrongLength(key: string, values: readonly unknown[], groups: number): DsError {
  return new DsError({
    code: 'DS_CONFIG',
    op: `scheduler.params.${key}`,
    expected: `a number, or one for each parameter group: ${groups}`,
    got: `${values.length}: ${JSON.stringify(values)}`,
    hint: 'Write one number for all groups, or as many as the optimizer has groups.',
  });
}

function build<Type extends keyof Params>(
  { type, params }: { type: Type; params: Params[Type] },
  baseLr: number,
): LrSchedule {
  return builders[type](params, baseLr);
}

const warmupLr: Builder<'WarmupLR'> = (params, baseLr) =>
  new WarmupLr({
    minLr: params.warmup_min_lr,
    maxLr: params.warmup_max_lr ?? baseLr,
    warmupSteps: params.warmup_num_steps,
    warmupType: params.warmup_type,
  });

const warmupDecayLr: Builder<'WarmupDecayLR'> = (params) =>
  new WarmupDecayLr({
    minLr: params.warmup_min_lr,
    maxLr: params.warmup_max_lr,
    warmupSteps: params.warmup_num_steps,
    warmupType: params.warmup_type,
    totalSteps: params.total_num_steps,
  });

const warmupCosineLr: Builder<'WarmupCosineLR'> = (params, baseLr) =>
  new WarmupCosineLr({
    baseLr,
    warmupMinRatio: params.warmup_min_ratio,
    cosMinRatio: params.cos_min_ratio,
    warmupSteps: params.warmup_num_steps,
    warmupType: params.warmup_type,
    totalSteps: params.total_num_steps,
  });

const oneCycle: Builder<'OneCycle'> = (params) =>
  new OneCycle({
    minLr: params.cycle_min_lr,
    maxLr: params.cycle_max_lr,
    decayLrRate: params.decay_lr_rate,
    firstStepSize: params.cycle_first_step_size,
    secondStepSize: params.cycle_second_step_size,
    firstStairCount: params.cycle_first_stair_count,
    secondStairCount: params.cycle_second_stair_count,
    decayStepSize: params.decay_step_size,
    cycleMomentum: params.cycle_momentum,
    minMomentum: params.cycle_min_mom,
    maxMomentum: params.cycle_max_mom,
    decayMomentumRate: params.decay_mom_rate,
  });

const lrRangeTest: Builder<'LRRangeTest'> = (params) =>
  new LrRangeTest({
    minLr: params.lr_range_test_min_lr,
    stepSize: params.lr_range_test_step_size,
    stepRate: params.lr_range_test_step_rate,
    staircase: params.lr_range_test_staircase,
  });

const reduceLrOnPlateau: Builder<'ReduceLROnPlateau'> = (params, baseLr) =>
  new ReduceLrOnPlateau({
    baseLr,
    mode: params.mode,
    factor: params.factor,
    patience: params.patience,
    threshold: params.threshold,
    thresholdMode: params.threshold_mode,
    cooldown: params.cooldown,
    minLr: params.min_lr,
    eps: params.eps,
  });

const builders: { [Type in keyof Params]: Builder<Type> } = {
  WarmupLR: warmupLr,
  WarmupDecayLR: warmupDecayLr,
  WarmupCosineLR: warmupCosineLr,
  OneCycle: oneCycle,
  LRRangeTest: lrRangeTest,
  CosineAnnealingLR: ({ T_max, eta_min }, baseLr) =>
    new CosineAnnealingLr({ baseLr, halfPeriod: T_max, minLr: eta_min }),
  StepLR: ({ step_size, gamma }, baseLr) => new StepLr({ baseLr, stepSize: step_size, gamma }),
  ExponentialLR: ({ gamma }, baseLr) => new ExponentialLr({ baseLr, gamma }),
  PolynomialLR: ({ total_iters, power }, baseLr) =>
    new PolynomialLr({ baseLr, totalSteps: total_iters, power }),
  ConstantLR: ({ factor, total_iters }, baseLr) =>
    new ConstantLr({ baseLr, factor, steps: total_iters }),
  MultiStepLR: ({ milestones, gamma }, baseLr) => new MultiStepLr({ baseLr, milestones, gamma }),
  LinearLR: ({ start_factor, end_factor, total_iters }, baseLr) =>
    new LinearLr({ baseLr, startFactor: start_factor, endFactor: end_factor, steps: total_iters }),
  CosineAnnealingWarmRestarts: ({ T_0, T_mult, eta_min }, baseLr) =>
    new CosineAnnealingWarmRestarts({ baseLr, firstPeriod: T_0, growth: T_mult, minLr: eta_min }),
  ReduceLROnPlateau: reduceLrOnPlateau,
};
