// Learning-rate schedules of Hugging Face's Trainer, for configurations without a scheduler.
import type { DsError } from '../errors.js';
import { PureSchedule } from '../optim/schedule.js';
import { argumentError, valueError } from '../runtime/input-errors.js';
import { isObject } from '../runtime/is-object.js';
import { number, type Options, oneOf, readDeclared } from '../runtime/option.js';

/** Shape of the learning rate after the warm-up, by the names of transformers. */
export type ScheduleType =
  | 'linear'
  | 'cosine'
  | 'cosine_with_restarts'
  | 'cosine_with_min_lr'
  | 'cosine_warmup_with_min_lr'
  | 'polynomial'
  | 'constant'
  | 'constant_with_warmup'
  | 'inverse_sqrt'
  | 'warmup_stable_decay';

const SLOPES = ['linear', 'cosine', '1-sqrt'] as const;

/** Shape of a rise or fall: a line, half a cosine wave, or 1 minus a square root. */
export type Slope = (typeof SLOPES)[number];

/** Options of schedules; `elsewhere` has the names of transformers' lr_scheduler_kwargs. */
export const SCHEDULE = {
  /** The lowest rate, reached at the end. Default: 0; 1e-7 for "polynomial". */
  minLr: number('lowest rate', { min: 0, elsewhere: '`min_lr`, `lr_end`' }),
  /** The lowest rate as a share of the highest, at most 1; replaces `minLr`. */
  minLrRate: number('lowest rate, as a share of the highest', {
    min: 0,
    max: 1,
    elsewhere: '`min_lr_rate`, `min_lr_ratio`',
  }),
  /** Number of waves of a cosine. Default: 0.5, half a wave; with "cosine_with_restarts" 1. */
  cycles: number('waves', { min: 0, elsewhere: '`num_cycles`' }),
  /** Power of "polynomial"; 1 is a line. Default: 1. */
  power: number('power of the polynomial', { min: 0, elsewhere: '`power`' }),
  /** Updates in which "warmup_stable_decay" falls, or a share of all below 1. Default: 0.1. */
  decay: number('updates of the fall; below 1, a share of all', {
    min: 0,
    elsewhere: '`num_decay_steps`',
  }),
  /** Updates before "warmup_stable_decay" falls. Default: the fall ends with the run. */
  stable: number('updates before the fall', { min: 0, elsewhere: '`num_stable_steps`' }),
  /** How "warmup_stable_decay" rises from the lowest rate. Default: "linear". */
  warmupType: oneOf(SLOPES)('shape of the rise', { elsewhere: '`warmup_type`' }),
  /** How "warmup_stable_decay" falls. Default: "cosine". */
  decayType: oneOf(SLOPES)('shape of the fall', { elsewhere: '`decay_type`' }),
  /**
   * First rate of "cosine_warmup_with_min_lr", as a share of the highest rate. Default: the rise is
   * divided into equal steps, and begins with the first one.
   */
  warmupLrRate: number('first rate, as a share of the highest', {
    min: 0,
    max: 1,
    elsewhere: '`warmup_lr_rate`',
  }),
};

/** A schedule and its options. */
export interface ScheduleOptions extends Options<typeof SCHEDULE> {
  /** Type of the schedule. */
  type: ScheduleType;
}

/** A schedule by name, or with its options. */
export type Schedule = ScheduleType | ScheduleOptions;

/** Length of a schedule in updates, and its highest rate. */
interface ScheduleSpan {
  lr: number;
  warmupSteps: number;
  totalSteps: number;
}

/** Schedules of configurations that equal one of these types. Source: transformers. */
const EQUIVALENTS: Readonly<Record<string, ScheduleType>> = {
  WarmupLR: 'constant_with_warmup',
  WarmupDecayLR: 'linear',
  WarmupCosineLR: 'cosine',
};

/** Returns a warning if the caller's schedule differs from the configuration's, otherwise null. */
export function warnIfOverruled(schedule: Schedule, scheduler: string): string | null {
  const type = typeof schedule === 'string' ? schedule : schedule.type;
  if (EQUIVALENTS[scheduler] === type) return null;
  return (
    `scheduler of the configuration, ${scheduler}, drives the rate: schedule "${type}" ` +
    '(--lr_scheduler_type) has no effect. Leave the section out of the file to have it.'
  );
}

/** Returns a warning if a warm-up is given for a schedule without one, otherwise null. */
export function warnIfNoWarmup(schedule: Schedule, warmup: number): string | null {
  const type = typeof schedule === 'string' ? schedule : schedule.type;
  if (type !== 'constant' || warmup === 0) return null;
  return (
    'schedule "constant" (--lr_scheduler_type) has no warm-up, as in transformers: ' +
    `${warmup} (--warmup_steps, --warmup_ratio) has no effect. "constant_with_warmup" has one.`
  );
}

/** A schedule with all options of its type. */
type CompleteSchedule = ScheduleOptions & typeof COMMON_DEFAULTS;

/** Default values of options. */
const COMMON_DEFAULTS = {
  minLr: 0,
  cycles: 0.5,
  power: 1,
  decay: 0.1,
  warmupType: 'linear' as Slope,
  decayType: 'cosine' as Slope,
};

/**
 * Returns a rate as a factor of the highest rate. `part`: finished fraction of the rise, or of the
 * steps after it.
 */
type Curve = (part: number, options: CompleteSchedule, span: ScheduleSpan) => number;

/**
 * Returns the lowest rate as a factor of the highest. If the highest rate is 0, the factor does not
 * matter.
 */
const computeMinFactor = ({ minLr, minLrRate }: CompleteSchedule, { lr }: ScheduleSpan): number =>
  minLrRate ?? (lr > 0 ? minLr / lr : 0);

const scaleFall = (fall: number, options: CompleteSchedule, span: ScheduleSpan): number => {
  const min = computeMinFactor(options, span);
  return min + (1 - min) * fall;
};

const cosineWave = (turns: number): number => Math.max(0, 0.5 * (1 + Math.cos(Math.PI * turns)));

const cosine: Curve = (part, options, span) =>
  scaleFall(cosineWave(2 * options.cycles * part), options, span);

const flat: Curve = () => 1;

/** Returns the number of updates after the warm-up. */
const countStepsAfterWarmup = ({ totalSteps, warmupSteps }: ScheduleSpan): number =>
  Math.max(1, totalSteps - warmupSteps);

const RISES: Readonly<Record<Slope, (part: number) => number>> = {
  linear: (part) => part,
  cosine: (part) => 1 - cosineWave(part),
  '1-sqrt': (part) => 1 - Math.sqrt(1 - part),
};

const FALLS: Readonly<Record<Slope, (part: number, options: CompleteSchedule) => number>> = {
  linear: (part) => 1 - part,
  cosine: (part, { cycles }) => cosineWave(2 * cycles * part),
  '1-sqrt': (part) => 1 - Math.sqrt(part),
};

/** Constant, then a fall to the lowest rate. */
const stableDecay: Curve = (part, options, span) => {
  const steps = resolveSteps(options.decay, span.totalSteps);
  const stable = options.stable ?? countStepsAfterWarmup(span) - steps;
  const fallSteps = part * countStepsAfterWarmup(span) - stable;
  if (fallSteps < 0) return 1;
  const fall =
    fallSteps >= steps ? 0 : FALLS[options.decayType](fallSteps / Math.max(1, steps), options);
  return scaleFall(fall, options, span);
};

/** Shifts a schedule by one step, so that the last step has the lowest rate. */
const shiftByStep = (part: number, steps: number): number => Math.min(1, part + 1 / steps);

/** Warm-up curves other than a line from 0. */
const WARMUPS: { readonly [Type in ScheduleType]?: Curve } = {
  constant: flat,
  warmup_stable_decay: (part, options, span) =>
    scaleFall(RISES[options.warmupType](part), options, span),
  cosine_warmup_with_min_lr: (part, { warmupLrRate: first }, { warmupSteps }) => {
    if (first === undefined) return shiftByStep(part, warmupSteps);
    return first + ((1 - first) * part * warmupSteps) / Math.max(1, warmupSteps - 1);
  },
};

/** Source: transformers, optimization.py. */
const CURVES: Readonly<Record<ScheduleType, Curve>> = {
  linear: (part, options, span) => scaleFall(1 - part, options, span),
  cosine,
  cosine_with_min_lr: cosine,
  cosine_warmup_with_min_lr: (part, options, span) =>
    cosine(shiftByStep(part, countStepsAfterWarmup(span)), options, span),
  cosine_with_restarts: (part, options, span) =>
    scaleFall(part >= 1 ? 0 : cosineWave((options.cycles * part) % 1), options, span),
  polynomial: (part, options, span) => scaleFall((1 - part) ** options.power, options, span),
  constant: flat,
  constant_with_warmup: flat,
  inverse_sqrt: (part, _, span) => {
    const scale = span.warmupSteps || 10_000;
    return 1 / Math.sqrt((part * countStepsAfterWarmup(span) + scale) / scale);
  },
  warmup_stable_decay: stableDecay,
};

type ScheduleOption = keyof typeof SCHEDULE;

/** Options of each schedule type. */
const TYPE_OPTIONS: Readonly<Record<ScheduleType, readonly ScheduleOption[]>> = {
  linear: ['minLr', 'minLrRate'],
  cosine: ['minLr', 'minLrRate', 'cycles'],
  cosine_with_min_lr: ['minLr', 'minLrRate', 'cycles'],
  cosine_warmup_with_min_lr: ['minLr', 'minLrRate', 'cycles', 'warmupLrRate'],
  cosine_with_restarts: ['minLr', 'minLrRate', 'cycles'],
  polynomial: ['minLr', 'minLrRate', 'power'],
  constant: [],
  constant_with_warmup: [],
  inverse_sqrt: [],
  warmup_stable_decay: [
    'minLr',
    'minLrRate',
    'cycles',
    'decay',
    'stable',
    'warmupType',
    'decayType',
  ] as const,
};

/** Defaults of some types. */
const DEFAULTS: { readonly [Type in ScheduleType]?: Partial<CompleteSchedule> } = {
  cosine_with_restarts: { cycles: 1 },
  polynomial: { minLr: 1e-7 },
};

/** Returns `value` updates; a value below 1 is a fraction of `total`, rounded up. */
export function resolveSteps(value: number, total: number): number {
  return value < 1 ? Math.ceil(value * total) : value;
}

const isType = (type: unknown): type is ScheduleType =>
  typeof type === 'string' && Object.hasOwn(TYPE_OPTIONS, type);

/** Returns `given`. Throws DS_ARGUMENT with `op`: see readSchedule(). */
export function requireSchedule(op: string, given: Schedule): Schedule {
  readSchedule(given, op);
  return given;
}

/**
 * Returns `given` with defaults. Throws DS_ARGUMENT for an unknown type, for options that the type
 * does not have, and for both `minLr` and `minLrRate`.
 */
function readSchedule(given: Schedule, op = 'Trainer schedule'): CompleteSchedule {
  const options: Partial<ScheduleOptions> = isObject<ScheduleOptions>(given)
    ? given
    : { type: given };
  const { type, ...typeOptions } = options;
  if (!isType(type)) {
    const hint =
      (type as unknown) === 'reduce_lr_on_plateau'
        ? 'Give `lrScheduler` an optim.ReduceLrOnPlateau.'
        : 'Other schedules: the "scheduler" of the configuration, or `lrScheduler`.';
    throw valueError(op, Object.keys(TYPE_OPTIONS).join(', '), type, hint);
  }
  const entries = Object.entries(readDeclared(op, typeOptions, SCHEDULE));
  const setEntries = entries.filter(([, value]) => value !== undefined);
  const [foreign] = setEntries.filter(
    ([name]) => !(TYPE_OPTIONS[type] as readonly string[]).includes(name),
  );
  if (foreign) throw foreignOptionError(type, foreign[0], TYPE_OPTIONS[type]);
  if (typeOptions.minLr !== undefined && typeOptions.minLrRate !== undefined) {
    throw argumentError(op, 'either minLr or minLrRate', 'both');
  }
  return { ...COMMON_DEFAULTS, ...DEFAULTS[type], ...Object.fromEntries(setEntries), type };
}

/**
 * Throws DS_ARGUMENT if the lowest rate exceeds `lr`, the highest. A highest rate of 0 is allowed.
 */
export function requireFall(schedule: Schedule, lr: number): void {
  const min = typeof schedule === 'string' ? undefined : schedule.minLr;
  if (min === undefined || lr === 0 || min <= lr) return;
  const expected = `at most ${lr}, the rate that falls`;
  throw argumentError('Trainer schedule minLr', expected, String(min));
}

/**
 * A schedule that rises to `lr` during the warm-up, usually from 0, then follows the curve of its
 * type until the end of the run.
 */
export class OwnSchedule extends PureSchedule {
  readonly name: string;
  private readonly options: CompleteSchedule;

  /** Throws DS_ARGUMENT: see readSchedule() and requireFall(). */
  constructor(
    schedule: Schedule,
    private readonly span: ScheduleSpan,
  ) {
    super();
    this.options = readSchedule(schedule);
    requireFall(schedule, span.lr);
    this.name = this.options.type;
  }

  lr(appliedSteps: number): number {
    const { options, span } = this;
    const { type } = options;
    const { lr, warmupSteps } = span;
    if (appliedSteps < warmupSteps) {
      const rise = WARMUPS[type];
      if (!rise) return (lr * appliedSteps) / warmupSteps;
      return lr * rise(appliedSteps / warmupSteps, options, span);
    }
    const part = (appliedSteps - warmupSteps) / countStepsAfterWarmup(span);
    const ends = type === 'inverse_sqrt' ? part : Math.min(1, part);
    return lr * CURVES[type](ends, options, span);
  }
}

function foreignOptionError(type: string, name: string, names: readonly string[]): DsError {
  const expected = names.length > 0 ? names.join(', ') : 'no options';
  const op = `Trainer schedule ${JSON.stringify(type)}`;
  return argumentError(op, expected, `"${name}"`);
}
