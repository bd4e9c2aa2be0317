// The learning-rate schedules of Hugging Face's Trainer, for configurations that have none.
import { DsError } from '../errors.js';
import { PureSchedule } from '../optim/schedule.js';
import { type OptionNames, readOptions } from '../runtime/options.js';
import { phrase } from '../runtime/phrase.js';
import { requireFinite } from '../runtime/require-number.js';

/** How the learning rate goes after the warm-up, by the names of transformers. */
export type ScheduleType =
  | 'linear'
  | 'cosine'
  | 'cosine_with_restarts'
  | 'cosine_with_min_lr'
  | 'polynomial'
  | 'constant'
  | 'constant_with_warmup'
  | 'inverse_sqrt'
  | 'warmup_stable_decay';

/** A schedule with what it can be told. */
export interface ScheduleOptions {
  /** Which one. */
  type: ScheduleType;
  /** The lowest rate, of those that fall: at the end. Default 0; of "polynomial" 1e-7. */
  minLr?: number;
  /** Waves: of "cosine" 0.5 (half a wave, the default), of "cosine_with_restarts" 1. */
  cycles?: number;
  /** Of "polynomial": 1 is a line. Default 1. */
  power?: number;
  /** Of "warmup_stable_decay": updates of the fall at the end, or a share of all below 1. */
  decay?: number;
}

/** A schedule by name, or with its options. */
export type Schedule = ScheduleType | ScheduleOptions;

/** The updates that a schedule is laid over, and the rate that it starts from. */
export interface ScheduleSpan {
  lr: number;
  warmupSteps: number;
  totalSteps: number;
}

const OPTIONS: OptionNames<ScheduleOptions> = {
  ...{ type: true, minLr: true, cycles: true, power: true, decay: true },
};

/** The schedules of configurations that go as one of these does. Source: transformers. */
const LIKE: Readonly<Record<string, ScheduleType>> = {
  WarmupLR: 'constant_with_warmup',
  WarmupDecayLR: 'linear',
  WarmupCosineLR: 'cosine',
};

/** What to say where a caller's schedule is not that of the configuration; null where it is. */
export function overruled(schedule: Schedule, scheduler: string): string | null {
  const type = typeof schedule === 'string' ? schedule : schedule.type;
  if (LIKE[scheduler] === type) return null;
  return (
    `scheduler of the configuration, ${scheduler}, drives the rate: schedule "${type}" ` +
    '(--lr_scheduler_type) has no effect. Leave the section out of the file to have it.'
  );
}

/** The rate after the warm-up, as a factor of the highest: `part` of the way has been gone. */
type Curve = (part: number, options: Required<ScheduleOptions>, span: ScheduleSpan) => number;

const between = (fall: number, { minLr }: ScheduleOptions, { lr }: ScheduleSpan): number => {
  const least = lr > 0 ? (minLr ?? 0) / lr : 0; // A rate of 0 is no part of anything: it stays.
  return least + (1 - least) * fall;
};

const wave = (turns: number): number => Math.max(0, 0.5 * (1 + Math.cos(Math.PI * turns)));

const cosine: Curve = (part, options, span) =>
  between(wave(2 * options.cycles * part), options, span);

const flat: Curve = () => 1;

/** Source: transformers, optimization.py. */
const CURVES: Readonly<Record<ScheduleType, Curve>> = {
  linear: (part, options, span) => between(1 - part, options, span),
  cosine,
  cosine_with_min_lr: cosine,
  cosine_with_restarts: (part, options, span) =>
    between(part >= 1 ? 0 : wave((options.cycles * part) % 1), options, span),
  polynomial: (part, options, span) => between((1 - part) ** options.power, options, span),
  constant: flat,
  constant_with_warmup: flat,
  inverse_sqrt: (part, _, { warmupSteps, totalSteps }) => {
    const scale = warmupSteps || 10_000;
    return 1 / Math.sqrt((part * Math.max(1, totalSteps - warmupSteps) + scale) / scale);
  },
  warmup_stable_decay: (part, options, span) => {
    const { totalSteps, warmupSteps } = span;
    const steps = stepsOf(options.decay, totalSteps);
    const left = (1 - part) * Math.max(1, totalSteps - warmupSteps);
    return left >= steps ? 1 : between(wave(1 - left / Math.max(1, steps)), options, span);
  },
};

/** Which options a type has, and their defaults. */
const DEFAULTS: Readonly<Record<ScheduleType, Partial<Omit<ScheduleOptions, 'type'>>>> = {
  linear: { minLr: 0 },
  cosine: { minLr: 0, cycles: 0.5 },
  cosine_with_min_lr: { minLr: 0, cycles: 0.5 },
  cosine_with_restarts: { minLr: 0, cycles: 1 },
  polynomial: { minLr: 1e-7, power: 1 },
  constant: {},
  constant_with_warmup: {},
  inverse_sqrt: {},
  warmup_stable_decay: { minLr: 0, decay: 0.1 },
};

/** `value` updates, or where it is below 1 that share of `total`, rounded up. */
export function stepsOf(value: number, total: number): number {
  return value < 1 ? Math.ceil(value * total) : value;
}

/**
 * `given` with its defaults. Throws DS_ARGUMENT for an unknown type, and options that it has not.
 */
export function readSchedule(given: Schedule): Required<ScheduleOptions> {
  const op = 'Trainer schedule';
  const options = readOptions(op, typeof given === 'string' ? { type: given } : given, OPTIONS);
  const { type, ...own } = options;
  if (!Object.hasOwn(DEFAULTS, type)) {
    const expected = Object.keys(DEFAULTS).join(', ');
    const hint =
      (type as string) === 'reduce_lr_on_plateau'
        ? 'Give `lrScheduler` an optim.ReduceLrOnPlateau.'
        : 'Other schedules: the "scheduler" of the configuration, or `lrScheduler`.';
    throw new DsError({ code: 'DS_ARGUMENT', op, expected, got: phrase(type), hint });
  }
  const defaults = DEFAULTS[type];
  for (const [name, value] of Object.entries(own)) {
    if (value === undefined) continue;
    if (!Object.hasOwn(defaults, name)) throw notIts(type, name, Object.keys(defaults));
    requireFinite(`${op} ${name}`, value, 0);
  }
  const said = Object.entries(own).filter(([, value]) => value !== undefined);
  return {
    minLr: 0,
    cycles: 1,
    power: 1,
    decay: 0,
    ...defaults,
    ...Object.fromEntries(said),
    type,
  };
}

/**
 * Throws DS_ARGUMENT for a lowest rate above `lr`, the highest; one of 0 stays, whatever is said.
 */
export function requireFall(schedule: Schedule, lr: number): void {
  const least = typeof schedule === 'string' ? undefined : schedule.minLr;
  if (least === undefined || lr === 0 || least <= lr) return;
  throw new DsError({
    code: 'DS_ARGUMENT',
    op: 'Trainer schedule minLr',
    expected: `at most ${lr}, the rate that falls`,
    got: String(least),
  });
}

/**
 * From 0 up to `lr` during the warm-up, then along the schedule's curve, which ends with the run.
 */
export class OwnSchedule extends PureSchedule {
  readonly name: string;
  private readonly options: Required<ScheduleOptions>;

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
    const { lr, warmupSteps, totalSteps } = this.span;
    if (appliedSteps < warmupSteps) return (lr * appliedSteps) / warmupSteps;
    const part = (appliedSteps - warmupSteps) / Math.max(1, totalSteps - warmupSteps);
    const { type } = this.options;
    const ends = type === 'inverse_sqrt' ? part : Math.min(1, part);
    return lr * CURVES[type](ends, this.options, this.span);
  }
}

function notIts(type: string, name: string, names: readonly string[]): DsError {
  const expected = names.length > 0 ? names.join(', ') : 'no options';
  const op = `Trainer schedule ${JSON.stringify(type)}`;
  return new DsError({ code: 'DS_ARGUMENT', op, expected, got: `"${name}"` });
}
