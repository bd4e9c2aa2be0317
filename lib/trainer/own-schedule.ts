// OwnSchedule: the learning-rate schedules of Hugging Face's Trainer. A Trainer uses them if the
// configuration has no scheduler.
import type { DsError } from '../errors.js';
import { PureSchedule } from '../optim/schedule.js';
import { argumentError, valueError } from '../runtime/input-errors.js';
import { isObject } from '../runtime/is-object.js';
import { number, type Options, oneOf, readDeclared } from '../runtime/option.js';

/** Schedules of the learning rate, by their names in transformers. */
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

/** Shape of a rise or a fall: a line, half a cosine wave, or 1 minus a square root. */
export type Slope = (typeof SLOPES)[number];

/** Options of schedules. `elsewhere` has their names in transformers' lr_scheduler_kwargs. */
export const SCHEDULE = {
  /** The lowest learning rate, which is reached at the end. Default: 0; 1e-7 for "polynomial". */
  minLr: number('lowest rate', { min: 0, elsewhere: '`min_lr`, `lr_end`' }),
  /** The lowest learning rate as a fraction of the highest, at most 1. Replaces `minLr`. */
  minLrRate: number('lowest rate, as a share of the highest', {
    min: 0,
    max: 1,
    elsewhere: '`min_lr_rate`, `min_lr_ratio`',
  }),
  /** Number of cosine waves. Default: 0.5, half a wave; 1 for "cosine_with_restarts". */
  cycles: number('waves', { min: 0, elsewhere: '`num_cycles`' }),
  /** Power of "polynomial". Default: 1, a line. */
  power: number('power of the polynomial', { min: 0, elsewhere: '`power`' }),
  /**
   * Number of updates of the fall of "warmup_stable_decay", or their fraction (less than 1).
   * Default: 0.1.
   */
  decay: number('updates of the fall; below 1, a share of all', {
    min: 0,
    elsewhere: '`num_decay_steps`',
  }),
  /**
   * Updates between rise and fall of "warmup_stable_decay". Default: the fall ends with the run.
   */
  stable: number('updates before the fall', { min: 0, elsewhere: '`num_stable_steps`' }),
  /** Shape of the rise of "warmup_stable_decay" from the lowest rate. Default: "linear". */
  warmupType: oneOf(SLOPES)('shape of the rise', { elsewhere: '`warmup_type`' }),
  /** Shape of the fall of "warmup_stable_decay". Default: "cosine". */
  decayType: oneOf(SLOPES)('shape of the fall', { elsewhere: '`decay_type`' }),
  /**
   * First rate of "cosine_warmup_with_min_lr", as a fraction of the highest rate. Default: the rise
   * has equal steps, and the first update is one step above 0.
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

/** Numbers of updates of a run, and the highest learning rate. */
interface ScheduleSpan {
  lr: number;
  warmupSteps: number;
  totalSteps: number;
}

/** Schedules of DeepSpeed that equal a type here, as in transformers. */
const EQUIVALENTS: Readonly<Record<string, ScheduleType>> = {
  WarmupLR: 'constant_with_warmup',
  WarmupDecayLR: 'linear',
  WarmupCosineLR: 'cosine',
};

/**
 * Returns a warning if the configuration's scheduler makes the option `schedule` ineffective, else
 * null.
 */
export function warnIfOverruled(schedule: Schedule, scheduler: string): string | null {
  const type = typeof schedule === 'string' ? schedule : schedule.type;
  if (EQUIVALENTS[scheduler] === type) return null;
  return (
    `scheduler of the configuration, ${scheduler}, drives the rate: schedule "${type}" ` +
    '(--lr_scheduler_type) has no effect. Leave the section out of the file to have it.'
  );
}

/** Returns a warning if the schedule ignores the option `warmup`, else null. */
export function warnIfNoWarmup(schedule: Schedule, warmup: number): string | null {
  const type = typeof schedule === 'string' ? schedule : schedule.type;
  if (type !== 'constant' || warmup === 0) return null;
  return (
    'schedule "constant" (--lr_scheduler_type) has no warm-up, as in transformers: ' +
    `${warmup} (--warmup_steps, --warmup_ratio) has no effect. "constant_with_warmup" has one.`
  );
}

/** A schedule with values for all options. */
type CompleteSchedule = ScheduleOptions & typeof COMMON_DEFAULTS;

/** Default values of options, unless DEFAULTS has others for a type. */
const COMMON_DEFAULTS = {
  minLr: 0,
  cycles: 0.5,
  power: 1,
  decay: 0.1,
  warmupType: 'linear' as Slope,
  decayType: 'cosine' as Slope,
};

/**
 * Returns the learning rate as a fraction of the highest. `part`: the completed fraction of the
 * warm-up, or of the updates after it.
 */
type Curve = (part: number, options: CompleteSchedule, span: ScheduleSpan) => number;

/**
 * Returns the lowest rate as a fraction of the highest. If the highest rate is 0, the fraction has
 * no effect, so it returns 0.
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

/** Returns the number of updates after the warm-up, at least 1. */
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

/** Returns 1 until the fall begins, then falls to the lowest rate. */
const stableDecay: Curve = (part, options, span) => {
  const steps = resolveSteps(options.decay, span.totalSteps);
  const stable = options.stable ?? countStepsAfterWarmup(span) - steps;
  const fallSteps = part * countStepsAfterWarmup(span) - stable;
  if (fallSteps < 0) return 1;
  const fall =
    fallSteps >= steps ? 0 : FALLS[options.decayType](fallSteps / Math.max(1, steps), options);
  return scaleFall(fall, options, span);
};

/** Moves a curve by one update, so that the last update has the lowest rate. */
const shiftByStep = (part: number, steps: number): number => Math.min(1, part + 1 / steps);

/** Warm-ups that are not a line from 0 to the highest rate. */
const WARMUPS: { readonly [Type in ScheduleType]?: Curve } = {
  constant: flat,
  warmup_stable_decay: (part, options, span) =>
    scaleFall(RISES[options.warmupType](part), options, span),
  cosine_warmup_with_min_lr: (part, { warmupLrRate: first }, { warmupSteps }) => {
    if (first === undefined) return shiftByStep(part, warmupSteps);
    return first + ((1 - first) * part * warmupSteps) / Math.max(1, warmupSteps - 1);
  },
};

/** The curves after the warm-up. Source: optimization.py of transformers. */
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

/** The options that each type has. */
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

/** Default values of options that differ for a type. */
const DEFAULTS: { readonly [Type in ScheduleType]?: Partial<CompleteSchedule> } = {
  cosine_with_restarts: { cycles: 1 },
  polynomial: { minLr: 1e-7 },
};

/**
 * Returns a number of updates. A `value` less than 1 is a fraction of `total`, which is rounded up.
 */
export function resolveSteps(value: number, total: number): number {
  return value < 1 ? Math.ceil(value * total) : value;
}

const isType = (type: unknown): type is ScheduleType =>
  typeof type === 'string' && Object.hasOwn(TYPE_OPTIONS, type);

/** Returns `given`. Throws DS_ARGUMENT for the operation `op` as readSchedule() does. */
export function requireSchedule(op: string, given: Schedule): Schedule {
  readSchedule(given, op);
  return given;
}

/**
 * Returns `given` with default values. Throws DS_ARGUMENT if the type is unknown, if the type lacks
 * a given option, or if both `minLr` and `minLrRate` are given.
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

/** Throws DS_ARGUMENT if the lowest rate is larger than the highest rate `lr`, unless `lr` is 0. */
export function requireFall(schedule: Schedule, lr: number): void {
  const min = typeof schedule === 'string' ? undefined : schedule.minLr;
  if (min === undefined || lr === 0 || min <= lr) return;
  const expected = `at most ${lr}, the rate that falls`;
  throw argumentError('Trainer schedule minLr', expected, String(min));
}

/**
 * A schedule of one parameter group. The rate rises to `span.lr` during the warm-up, usually from
 * 0. Then it follows the curve of its type until the end of the run.
 */
export class OwnSchedule extends PureSchedule {
  readonly name: string;
  private readonly options: CompleteSchedule;

  /** Throws DS_ARGUMENT as readSchedule() and requireFall() do. */
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
