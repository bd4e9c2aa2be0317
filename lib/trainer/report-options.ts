// Declares the options of a Trainer for logs, checkpoints and reports.
import type { WatchOptions } from '../engine/watch/run-watch.js';
import type { Monitor } from '../monitor/index.js';
import { valueError } from '../runtime/input-errors.js';
import { isObject } from '../runtime/is-object.js';
import {
  boolean,
  declareOption,
  integer,
  number,
  type Options,
  object,
  readDeclared,
  type Settings,
  string,
} from '../runtime/option.js';
import { readOptions } from '../runtime/options.js';
import { requireType } from '../runtime/require-type.js';
import {
  EVENT_TYPES,
  type TrainerEvent,
  type TrainerEventOf,
  type TrainerEventType,
} from './events.js';
import { type Interval, requireEvery } from './interval.js';

/**
 * Functions that are called for events, by type of event. If one returns a promise, it is awaited.
 */
export type TrainerCallbacks = {
  readonly [Type in TrainerEventType]?: (event: TrainerEventOf<Type>) => unknown;
} & { readonly any?: (event: TrainerEvent) => unknown };

/**
 * Where logs are reported: in files of a monitor under `save.dir`/runs, or to a monitor of the
 * program.
 */
export type Report = 'tensorboard' | 'csv' | Monitor;

/** The declared options of logs. */
export const LOGGING = {
  /** When to log: after a number of updates, a fraction of all, or "epoch". Default: 10. */
  every: declareOption(
    requireEvery,
    'when to log: a number of updates, a share of them below 1, or `"epoch"`',
    {
      default: 10,
      elsewhere: '`logging_strategy`, `logging_steps`',
    },
  ),
  /** Whether the first update is logged too. Default: false. */
  first: boolean('log the first update too', { default: false, flag: 'logging_first_step' }),
  /**
   * Whether losses that are not finite are left out of means. Default: false, so a mean can be NaN.
   */
  nanFilter: boolean('leave NaN and infinite losses out of means; true in transformers', {
    default: false,
    flag: 'logging_nan_inf_filter',
  }),
};

/** Options of logs. */
export interface LogOptions extends Options<typeof LOGGING> {}

/** The declared options of the best evaluation. */
export const BEST = {
  /** Metric: "loss", "accuracy" (with `eval.accuracy`), or a metric of `eval.metrics`. */
  metric: string('metric of the best evaluation', {
    required: true,
    elsewhere: '`metric_for_best_model`',
  }),
  /**
   * Whether larger values are better. Default: false for a metric that ends in "loss", else true.
   */
  greaterIsBetter: boolean('larger values of the metric are better', {
    shown: 'unless it ends in `loss`',
    flag: 'greater_is_better',
  }),
  /** Whether the model has the weights of the best checkpoint after train(). Default: true. */
  load: boolean('end with the best checkpoint', {
    default: true,
    elsewhere: '`load_best_model_at_end`',
  }),
};

/** How the best evaluation is found. */
export interface BestOptions extends Options<typeof BEST> {}

/** The declared options of checkpoints. */
export const SAVING = {
  /** Folder for the checkpoint-<step> folders. */
  dir: string('folder of the `checkpoint-<step>` folders', {
    required: true,
    elsewhere: '`output_dir`',
  }),
  /**
   * When to save: after a number of updates, a fraction of all, "epoch", or "best" after each new
   * best evaluation. The last update is always saved, except with "best". Default: 500.
   */
  every: declareOption(
    (op, value: Interval | 'best') =>
      value === 'best' ? value : requireEvery(op, value, ', or "best"'),
    'when to save; `"best"`: only at a new best evaluation',
    { default: 500, elsewhere: '`save_strategy`, `save_steps`' },
  ),
  /** Number of newest checkpoints to keep, including the best one. Default: all. */
  keep: integer('[checkpoints to keep](#keep-only-the-best), the best included', {
    min: 1,
    default: null,
    shown: 'all',
    flag: 'save_total_limit',
  }),
  /** Keeps the best checkpoint, by this metric of evaluations; or an object with more options. */
  best: declareOption(
    readBest,
    'metric that finds the best checkpoint, or `{ metric, greaterIsBetter, load }`',
    {
      default: null,
      fields: BEST,
      elsewhere: '`metric_for_best_model`, `load_best_model_at_end`',
    },
  ),
  /**
   * Whether each checkpoint also contains whole weights and the tokenizer, as transformers reads
   * them; for a model with adapters, only the adapters, as PEFT reads them. Default: true.
   */
  weights: boolean('also write the weights, as transformers reads them', { default: true }),
  /**
   * Whether a checkpoint contains only weights or adapters. A run cannot resume from it.
   * Default: false.
   */
  weightsOnly: boolean('write only the weights; such checkpoints cannot resume', {
    default: false,
    flag: 'save_only_model',
  }),
};

/** Options of checkpoints. */
export interface CheckpointOptions extends Options<typeof SAVING> {}

/** CheckpointOptions with default values. `keep` is null if all checkpoints are kept. */
export type SaveSettings = Settings<typeof SAVING>;

/** The declared options of early stopping. */
export const STOPPING = {
  /** Number of consecutive evaluations without improvement after which training ends. */
  patience: integer('end after this number of evaluations without improvement', {
    min: 1,
    required: true,
    flag: 'early_stopping_patience',
  }),
  /** Smallest change of the metric that is an improvement. Default: 0. */
  threshold: number('smallest change of the metric that counts as an improvement', {
    min: 0,
    default: 0,
    flag: 'early_stopping_threshold',
  }),
};

/** Options of early stopping. `save.best` names the metric. */
export interface EarlyStopOptions extends Options<typeof STOPPING> {}

/** The declared options of logs, checkpoints and reports. */
export const REPORTING = {
  /** Options of logs. */
  log: object<LogOptions>()(LOGGING),
  /** Options of checkpoints, or their folder. Default: no checkpoints. */
  save: declareOption(readSave, 'checkpoints', {
    default: null,
    fields: SAVING,
  }),
  /** Ends training if evaluations no longer improve. Default: off. */
  earlyStop: declareOption(
    (op, given: EarlyStopOptions) => readDeclared(op, given, STOPPING, '.'),
    'ends training if evaluations no longer improve',
    { default: null, fields: STOPPING, elsewhere: '`EarlyStoppingCallback`' },
  ),
  /** Where logs are reported, in addition to events. Default: nowhere. */
  report: declareOption(
    requireReports,
    '`"tensorboard"`, `"csv"` or a monitor; files in `save.dir`/runs',
    { default: [], shown: 'none', elsewhere: '`report_to`' },
  ),
  /**
   * Records the run and serves a local web page of it; see engine.watch(). The default folder is
   * `save.dir`. Default: false.
   */
  watch: declareOption(
    requireWatch,
    '[a page of the run](watching.md); `ds train` records every run',
    {
      default: false,
    },
  ),
  /**
   * File for the device time of updates 4 to 6; see engine.trace(). A name that ends in ".txt" gets
   * a table by role, other names a trace. Default: none.
   */
  profile: string('file for [device time by role](profiling.md#device-time-by-role), `*.txt`', {
    default: null,
    shown: 'none',
    flag: 'profile',
  }),
  /** Whether rank 0 draws a progress bar. Default: true. */
  progress: boolean('show a progress bar on rank 0', {
    default: true,
    elsewhere: '`disable_tqdm`',
  }),
  /** Name of the run in reports. Default: "trainer". */
  runName: string('name of the run in reports', { default: 'trainer', flag: 'run_name' }),
  /** Functions for events. They are called before the iteration over train() gets the event. */
  callbacks: declareOption(requireCallbacks, 'listeners of [events](#events)', {
    default: [],
    shown: 'none',
    elsewhere: '`callbacks`',
  }),
};

function requireReports(op: string, given: readonly Report[]): readonly Report[] {
  if (!Array.isArray(given)) throw valueError(op, 'a list, such as ["tensorboard"]', given);
  for (const item of given) {
    if (item === 'tensorboard' || item === 'csv') continue;
    if (typeof (item as { write?: unknown } | null)?.write === 'function') continue;
    const hint =
      item === 'wandb'
        ? 'Nothing is sent to Weights & Biases: `wandb sync` takes the files of "tensorboard".'
        : '';
    throw valueError(op, '"tensorboard", "csv" or a Monitor', item, hint);
  }
  return given;
}

function requireCallbacks(
  op: string,
  given: readonly TrainerCallbacks[],
): readonly TrainerCallbacks[] {
  if (!Array.isArray(given)) throw valueError(op, 'a list, such as [{ log(event) {} }]', given);
  for (const callbacks of given) {
    readOptions(op, callbacks, EVENT_TYPES);
    for (const [type, value] of Object.entries(callbacks)) {
      if (value !== undefined) requireType(`${op} ${type}`, value, 'function');
    }
  }
  return given;
}

/** Returns `given`. engine.watch() checks its options. */
function requireWatch(op: string, given: boolean | WatchOptions): boolean | WatchOptions {
  if (typeof given === 'boolean' || isObject(given)) return given;
  throw valueError(op, 'true, false or options of engine.watch()', given);
}

function readBest(op: string, given: string | BestOptions): Required<BestOptions> {
  const options = typeof given === 'string' ? { metric: given } : given;
  const read = readDeclared(op, options, BEST, '.');
  const metric = read.metric.replace(/^eval_/, '');
  return { ...read, metric, greaterIsBetter: read.greaterIsBetter ?? !metric.endsWith('loss') };
}

function readSave(op: string, given: string | CheckpointOptions): SaveSettings {
  const options = typeof given === 'string' ? { dir: given } : given;
  return readDeclared(op, options, SAVING, '.');
}
