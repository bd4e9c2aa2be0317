// Options of a Trainer about logs, checkpoints and reports.
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

/** Callbacks by type of event; returned promises are awaited. */
export type TrainerCallbacks = {
  readonly [Type in TrainerEventType]?: (event: TrainerEventOf<Type>) => unknown;
} & { readonly any?: (event: TrainerEvent) => unknown };

/** Destination of logs: folders of a monitor in `save.dir`/runs, or your own monitor. */
export type Report = 'tensorboard' | 'csv' | Monitor;

/** The declared options of logs. */
export const LOGGING = {
  /** When to log: a number of updates, a share of them, or "epoch". Default: 10. */
  every: declareOption(
    requireEvery,
    'when to log: a number of updates, a share of them below 1, or `"epoch"`',
    {
      default: 10,
      elsewhere: '`logging_strategy`, `logging_steps`',
    },
  ),
  /** Logs the first update as well. Default: false. */
  first: boolean('log the first update too', { default: false, flag: 'logging_first_step' }),
  /** Excludes losses that are not finite from means. Default: false, so a mean can be NaN. */
  nanFilter: boolean('leave NaN and infinite losses out of means; true in transformers', {
    default: false,
    flag: 'logging_nan_inf_filter',
  }),
};

/** Options of logs. */
export interface LogOptions extends Options<typeof LOGGING> {}

/** The declared options of the best evaluation. */
export const BEST = {
  /** Metric: "loss", "accuracy" (with `eval.accuracy`), or a name of `eval.metrics`. */
  metric: string('metric of the best evaluation', {
    required: true,
    elsewhere: '`metric_for_best_model`',
  }),
  /** Whether larger values are better. Default: false if the metric ends in "loss", else true. */
  greaterIsBetter: boolean('larger values of the metric are better', {
    shown: 'unless it ends in `loss`',
    flag: 'greater_is_better',
  }),
  /** Ends train() with the best checkpoint's weights. Default: true. */
  load: boolean('end with the best checkpoint', {
    default: true,
    elsewhere: '`load_best_model_at_end`',
  }),
};

/** Choice of the best evaluation. */
export interface BestOptions extends Options<typeof BEST> {}

/** The declared options of checkpoints. */
export const SAVING = {
  /** The folder of the checkpoint-<step> folders. */
  dir: string('folder of the `checkpoint-<step>` folders', {
    required: true,
    elsewhere: '`output_dir`',
  }),
  /**
   * When to save: a number of updates, a share of them, "epoch", or "best" at each new best
   * evaluation. The last update saves too. Default: 500.
   */
  every: declareOption(
    (op, value: Interval | 'best') =>
      value === 'best' ? value : requireEvery(op, value, ', or "best"'),
    'when to save; `"best"`: only at a new best evaluation',
    { default: 500, elsewhere: '`save_strategy`, `save_steps`' },
  ),
  /** Number of newest checkpoints to keep, the best one included. Default: all. */
  keep: integer('[checkpoints to keep](#keep-only-the-best), the best included', {
    min: 1,
    default: null,
    shown: 'all',
    flag: 'save_total_limit',
  }),
  /** Keeps the best checkpoint: a metric of the evaluation, or an object with more options. */
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
   * Writes whole weights and the tokenizer into each checkpoint, for transformers; for a model with
   * adapters only the adapters, for PEFT. Default: true.
   */
  weights: boolean('also write the weights, as transformers reads them', { default: true }),
  /** Writes only weights or adapters; such checkpoints cannot be resumed. Default: false. */
  weightsOnly: boolean('write only the weights; such checkpoints cannot resume', {
    default: false,
    flag: 'save_only_model',
  }),
};

/** Folder and times of checkpoints. */
export interface CheckpointOptions extends Options<typeof SAVING> {}

/** CheckpointOptions with defaults; `keep` null keeps all. */
export type SaveSettings = Settings<typeof SAVING>;

/** The declared options of early stopping. */
export const STOPPING = {
  /** Training ends after this number of consecutive evaluations without improvement. */
  patience: integer('end after this number of evaluations without improvement', {
    min: 1,
    required: true,
    flag: 'early_stopping_patience',
  }),
  /** Smallest change of the metric that counts as an improvement. Default: 0. */
  threshold: number('smallest change of the metric that counts as an improvement', {
    min: 0,
    default: 0,
    flag: 'early_stopping_threshold',
  }),
};

/** Options of early stopping; `save.best` sets the metric. */
export interface EarlyStopOptions extends Options<typeof STOPPING> {}

/** Logs, checkpoints and reports. */
export const REPORTING = {
  /** When and what to log. */
  log: object<LogOptions>()(LOGGING),
  /** Folder and times of checkpoints. Default: no checkpoints. */
  save: declareOption(readSave, 'checkpoints', {
    default: null,
    fields: SAVING,
  }),
  /** Ends training if evaluations no longer improve. Default: disabled. */
  earlyStop: declareOption(
    (op, given: EarlyStopOptions) => readDeclared(op, given, STOPPING, '.'),
    'ends training if evaluations no longer improve',
    { default: null, fields: STOPPING, elsewhere: '`EarlyStoppingCallback`' },
  ),
  /** Destinations of logs in addition to events. Default: none. */
  report: declareOption(
    requireReports,
    '`"tensorboard"`, `"csv"` or a monitor; files in `save.dir`/runs',
    { default: [], shown: 'none', elsewhere: '`report_to`' },
  ),
  /**
   * Records the run and serves a local web page of it: see engine.watch(). The default folder is
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
   * File for the device time of updates 4 to 6: a table by role if its name ends in ".txt", else a
   * trace. See engine.trace(). Default: none.
   */
  profile: string('file for [device time by role](profiling.md#device-time-by-role), `*.txt`', {
    default: null,
    shown: 'none',
    flag: 'profile',
  }),
  /** Draws a progress bar on rank 0. Default: true. */
  progress: boolean('show a progress bar on rank 0', {
    default: true,
    elsewhere: '`disable_tqdm`',
  }),
  /** Name of the run in reports. Default: "trainer". */
  runName: string('name of the run in reports', { default: 'trainer', flag: 'run_name' }),
  /** Called for each event, before the iteration of train() receives it. */
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

/** Returns `given`: engine.watch() checks its own options. */
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
