// Learning-rate schedules of Hugging Face's Trainer, for configurations without a scheduler.
import type { DsError } from '../errors.js';
import { PureSchedule } from '../optim/schedule.js';
import { argumentError, valueError } from '../runtime/input-errors.js';
import { isObject } from '../runtime/is-object.js';
import { number, type Options, oneOf, readDeclared } from '../runtime/option.js';

/** How the learning rate goes after the warm-up, by the names of transformers. */
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

/** How a rate rises or falls: in a line, by half a wave, or by 1 minus a square root. */
export type Slope = 'linear' | 'cosine' | '1-sqrt';

const SLOPES: readonly Slope[] = ['linear', 'cosine', '1-sqrt'];

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
  /** Waves: 0.5 (half a wave, the default), of "cosine_with_restarts" 1. */
  cycles: number('waves', { min: 0, elsewhere: '`num_cycles`' }),
  /** Of "polynomial": 1 is a line. Default: 1. */
  power: number('power of the polynomial', { min: 0, elsewhere: '`power`' }),
  /** Of "warmup_stable_decay": updates of the fall, or a share of all below 1. Default: 0.1. */
  decay: number('updates of the fall; below 1, a share of all', {
    min: 0,
    elsewhere: '`num_decay_steps`',
  }),
  /** Of "warmup_stable_decay": updates before the fall. Default: it ends with the run. */
  stable: number('updates before the fall', { min: 0, elsewhere: '`num_stable_steps`' }),
  /** Of "warmup_stable_decay": how the rate rises, from the lowest one. Default: "linear". */
  warmupType: oneOf(SLOPES)('shape of the rise', { elsewhere: '`warmup_type`' }),
  /** Of "warmup_stable_decay": how it falls. Default: "cosine". */
  decayType: oneOf(SLOPES)('shape of the fall', { elsewhere: '`decay_type`' }),
  /**
   * Of "cosine_warmup_with_min_lr": where the rise begins, as a share of the highest rate. Default:
   * at the first of as many steps as the rise has.
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

/** The updates that a schedule is laid over, and the rate that it starts from. */
interface ScheduleSpan {
  lr: number;
  warmupSteps: number;
  totalSteps: number;
}

/** The schedules of configurations that go as one of these does. Source: transformers. */
const LIKE: Readonly<Record<string, ScheduleType>> = {
  WarmupLR: 'constant_with_warmup',
  WarmupDecayLR: 'linear',
  WarmupCosineLR: 'cosine',
};

/** A warning if the caller's schedule differs from the configuration's, else null. */
export function overruledWarning(schedule: Schedule, scheduler: string): string | null {
  const type = typeof schedule === 'string' ? schedule : schedule.type;
  if (LIKE[scheduler] === type) return null;
  return (
    `scheduler of the configuration, ${scheduler}, drives the rate: schedule "${type}" ` +
    '(--lr_scheduler_type) has no effect. Leave the section out of the file to have it.'
  );
}

/** A warning if a warm-up is given for a schedule without one, else null. */
export function warmupWarning(schedule: Schedule, warmup: number): string | null {
  const type = typeof schedule === 'string' ? schedule : schedule.type;
  if (type !== 'constant' || warmup === 0) return null;
  return (
    'schedule "constant" (--lr_scheduler_type) has no warm-up, as in transformers: ' +
    `${warmup} (--warmup_steps, --warmup_ratio) has no effect. "constant_with_warmup" has one.`
  );
}

/** A schedule with all options of its type. */
type Report = ScheduleOptions & typeof NEUTRAL;

/** Default values of options. */
const NEUTRAL = {
  minLr: 0,
  cycles: 0.5,
  power: 1,
  decay: 0.1,
  warmupType: 'linear' as Slope,
  decayType: 'cosine' as Slope,
};

/** A rate as a factor of the highest: `part` of the rise, or of the way after it, is done. */
type Curve = (part: number, options: Report, span: ScheduleSpan) => number;

/** The lowest rate as a factor of the highest. A rate of 0 is no part of anything: it stays. */
const minOf = ({ minLr, minLrRate }: Report, { lr }: ScheduleSpan): number =>
  minLrRate ?? (lr > 0 ? minLr / lr : 0);

const between = (fall: number, options: Report, span: ScheduleSpan): number => {
  const min = minOf(options, span);
  return min + (1 - min) * fall;
};

const wave = (turns: number): number => Math.max(0, 0.5 * (1 + Math.cos(Math.PI * turns)));

const cosine: Curve = (part, options, span) =>
  between(wave(2 * options.cycles * part), options, span);

const flat: Curve = () => 1;

/** Updates after the warm-up. */
const restOf = ({ totalSteps, warmupSteps }: ScheduleSpan): number =>
  Math.max(1, totalSteps - warmupSteps);

const RISES: Readonly<Record<Slope, (part: number) => number>> = {
  linear: (part) => part,
  cosine: (part) => 1 - wave(part),
  '1-sqrt': (part) => 1 - Math.sqrt(1 - part),
};

const FALLS: Readonly<Record<Slope, (part: number, options: Report) => number>> = {
  linear: (part) => 1 - part,
  cosine: (part, { cycles }) => wave(2 * cycles * part),
  '1-sqrt': (part) => 1 - Math.sqrt(part),
};

/** Level, then a fall to the lowest rate. */
const stableDecay: Curve = (part, options, span) => {
  const steps = stepsOf(options.decay, span.totalSteps);
  const stable = options.stable ?? restOf(span) - steps;
  const gone = part * restOf(span) - stable;
  if (gone < 0) return 1;
  const fall = gone >= steps ? 0 : FALLS[options.decayType](gone / Math.max(1, steps), options);
  return between(fall, options, span);
};

/** Shifts a schedule by one step, so that the last step has the lowest rate. */
const ahead = (part: number, steps: number): number => Math.min(1, part + 1 / steps);

/** Warm-up curves other than a line from 0. */
const WARMUPS: { readonly [Type in ScheduleType]?: Curve } = {
  constant: flat,
  warmup_stable_decay: (part, options, span) =>
    between(RISES[options.warmupType](part), options, span),
  cosine_warmup_with_min_lr: (part, { warmupLrRate: first }, { warmupSteps }) => {
    if (first === undefined) return ahead(part, warmupSteps);
    return first + ((1 - first) * part * warmupSteps) / Math.max(1, warmupSteps - 1);
  },
};

/** Source: transformers, optimization.py. */
const CURVES: Readonly<Record<ScheduleType, Curve>> = {
  linear: (part, options, span) => between(1 - part, options, span),
  cosine,
  cosine_with_min_lr: cosine,
  cosine_warmup_with_min_lr: (part, options, span) =>
    cosine(ahead(part, restOf(span)), options, span),
  cosine_with_restarts: (part, options, span) =>
    between(part >= 1 ? 0 : wave((options.cycles * part) % 1), options, span),
  polynomial: (part, options, span) => between((1 - part) ** options.power, options, span),
  constant: flat,
  constant_with_warmup: flat,
  inverse_sqrt: (part, _, span) => {
    const scale = span.warmupSteps || 10_000;
    return 1 / Math.sqrt((part * restOf(span) + scale) / scale);
  },
  warmup_stable_decay: stableDecay,
};

type OwnOption = keyof typeof SCHEDULE;

/** Options of each schedule type. */
const OWN: Readonly<Record<ScheduleType, readonly OwnOption[]>> = {
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
    ...(['minLr', 'minLrRate', 'cycles', 'decay', 'stable'] as const),
    ...(['warmupType', 'decayType'] as const),
  ],
};

/** Defaults of single types. */
const DEFAULTS: { readonly [Type in ScheduleType]?: Partial<Report> } = {
  cosine_with_restarts: { cycles: 1 },
  polynomial: { minLr: 1e-7 },
};

/** Returns `value` updates; a value below 1 is a fraction of `total`, rounded up. */
export function stepsOf(value: number, total: number): number {
  return value < 1 ? Math.ceil(value * total) : value;
}

const isType = (type: unknown): type is ScheduleType =>
  typeof type === 'string' && Object.hasOwn(OWN, type);

/** Returns `given`. Throws DS_ARGUMENT with `op`: see readSchedule(). */
export function requireSchedule(op: string, given: Schedule): Schedule {
  readSchedule(given, op);
  return given;
}

/**
 * Returns `given` with defaults. Throws DS_ARGUMENT for an unknown type, for options that the type
 * does not have, and for both `minLr` and `minLrRate`.
 */
export function readSchedule(given: Schedule, op = 'Trainer schedule'): Report {
  const options: Partial<ScheduleOptions> = isObject<ScheduleOptions>(given)
    ? given
    : { type: given };
  const { type, ...own } = options;
  if (!isType(type)) {
    const hint =
      (type as unknown) === 'reduce_lr_on_plateau'
        ? 'Give `lrScheduler` an optim.ReduceLrOnPlateau.'
        : 'Other schedules: the "scheduler" of the configuration, or `lrScheduler`.';
    throw valueError(op, Object.keys(OWN).join(', '), type, hint);
  }
  const read = Object.entries(readDeclared(op, own, SCHEDULE));
  const said = read.filter(([, value]) => value !== undefined);
  const [foreign] = said.filter(([name]) => !(OWN[type] as readonly string[]).includes(name));
  if (foreign) throw foreignOption(type, foreign[0], OWN[type]);
  if (own.minLr !== undefined && own.minLrRate !== undefined) {
    throw argumentError(op, 'either minLr or minLrRate', 'both');
  }
  return { ...NEUTRAL, ...DEFAULTS[type], ...Object.fromEntries(said), type };
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
 * Up to `lr` during the warm-up, mostly from 0, then along the schedule's curve, which ends with
 * the run.
 */
export class OwnSchedule extends PureSchedule {
  readonly name: string;
  private readonly options: Report;

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
    const part = (appliedSteps - warmupSteps) / restOf(span);
    const ends = type === 'inverse_sqrt' ? part : Math.min(1, part);
    return lr * CURVES[type](ends, options, span);
  }
}

function foreignOption(type: string, name: string, names: readonly string[]): DsError {
  const expected = names.length > 0 ? names.join(', ') : 'no options';
  const op = `Trainer schedule ${JSON.stringify(type)}`;
  return argumentError(op, expected, `"${name}"`);
}
