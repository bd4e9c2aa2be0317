// Converts arguments of `ds train` to the options of a Trainer.

import { TASK_METRICS } from '../../models/tasks/metrics.js';
import { argumentError } from '../../runtime/input-errors.js';
import { ownValue } from '../../runtime/own-value.js';
import { keysOf } from '../../runtime/typed-keys.js';
import { LOADING } from '../data-options.js';
import { EVALUATION, type EvalOptions } from '../evaluation-options.js';
import type { Interval } from '../interval.js';
import { MODEL, OPTIMIZATION, type Precision, type TrainerOptions } from '../options.js';
import { SCHEDULE, type Schedule } from '../own-schedule.js';
import {
  BEST,
  type CheckpointOptions,
  LOGGING,
  REPORTING,
  SAVING,
  STOPPING,
} from '../report-options.js';
import { readOptionsOf, type TrainArguments } from './arguments.js';
import { METHODS } from './methods.js';

/** The evaluation options of a Trainer, without data. */
export type Evaluation = Omit<EvalOptions<unknown, unknown>, 'data'>;

/** Options of a Trainer, without model and data. */
interface TrainerPart {
  options: Omit<TrainerOptions, 'model' | 'tokenizer' | 'train' | 'eval'>;
  /** Null if there are no evaluation data, or no argument requests evaluations. */
  evaluation: Evaluation | null;
}

/**
 * Converts `args` to options. `dir`: the output folder. Options without an argument are undefined,
 * so the Trainer uses its defaults. Throws DS_ARGUMENT if a value is invalid or arguments
 * contradict each other.
 */
export function readTrainerPart(args: TrainArguments, dir: string): TrainerPart {
  const { adam_beta1: beta1, adam_beta2: beta2, max_steps: steps = -1 } = args;
  const logging = readInterval('logging', args.logging_strategy, args.logging_steps);
  return {
    options: {
      ...readOptionsOf(MODEL, args),
      ...readOptionsOf(OPTIMIZATION, args),
      ...readOptionsOf(REPORTING, args),
      precision: readPrecision(args),
      maxSteps: steps > 0 ? steps : undefined,
      schedule: readSchedule(args),
      warmup: readWarmup(args),
      betas:
        beta1 === undefined && beta2 === undefined ? undefined : [beta1 ?? 0.9, beta2 ?? 0.999],
      optimizer: readOptimizer(args.optim),
      data: { ...readLoading(args), seed: args.data_seed, sequenceLength: args.max_length },
      log: { ...readOptionsOf(LOGGING, args), every: logging === null ? NEVER : logging },
      save: readSave(args, dir),
      earlyStop: readEarlyStop(args),
      report: readReport(args),
      watch: readWatch(args, dir),
      progress: args.disable_tqdm === undefined ? undefined : !args.disable_tqdm,
      device: args.use_cpu ? 'cpu' : args.device,
    },
    evaluation: readEvaluation(args),
  };
}

/** An interval that is longer than any run. */
const NEVER = Number.MAX_SAFE_INTEGER;

/**
 * Returns the precision. With a DeepSpeed configuration, --fp16_full_eval means training in fp16,
 * as in transformers' table of "auto" values. Without a configuration, it throws DS_ARGUMENT unless
 * training uses the same dtype, because evaluations always do.
 */
function readPrecision(args: TrainArguments): Precision | undefined {
  const { fp16, bf16, fp16_full_eval: fp16Eval, bf16_full_eval: bf16Eval, deepspeed } = args;
  for (const [name, evaluates, trains] of [
    ['fp16', fp16Eval, fp16],
    ['bf16', bf16Eval, bf16],
  ] as const) {
    if (!evaluates || trains || deepspeed !== undefined) continue;
    const hint = 'Set both: evaluations use the dtype of training.';
    throw argumentError(`--${name}_full_eval`, `--${name} together with it`, `no --${name}`, hint);
  }
  const [half, brain] = [fp16 || fp16Eval, bf16 || bf16Eval];
  if (half && brain) throw argumentError('--fp16', 'either --fp16 or --bf16', 'both');
  if (half) return 'fp16';
  if (brain) return 'bf16';
  return fp16 === false || bf16 === false ? 'fp32' : undefined;
}

/**
 * Names in transformers of AdamW with moments in f32. A DeepSpeed configuration may select other
 * optimizers. The paged ones run as AdamW too: `offload_optimizer` keeps moments on the host.
 */
const ADAMW = [
  'adamw',
  'adamw_torch',
  'adamw_torch_fused',
  'adamw_hf',
  'adamw_apex_fused',
  'adamw_torch_xla',
  'adamw_torch_npu_fused',
  'paged_adamw',
  'paged_adamw_32bit',
];

/** Names in transformers of AdamW with moments in 8 bits. */
const ADAMW_8BIT = ['adamw_8bit', 'adamw_bnb_8bit', 'paged_adamw_8bit'];

/**
 * Returns the optimizer. Returns undefined for AdamW, because the configuration may select another
 * one.
 */
function readOptimizer(optim: string | undefined): 'AdamW8bit' | undefined {
  if (optim === undefined || ADAMW.includes(optim)) return undefined;
  if (ADAMW_8BIT.includes(optim)) return 'AdamW8bit';
  const hint = 'Set other optimizers as "optimizer" in the DeepSpeed configuration.';
  throw argumentError('--optim', [...ADAMW, ...ADAMW_8BIT].join(', '), JSON.stringify(optim), hint);
}

/**
 * Returns the number of warm-up updates or, if it is not given or 0, their fraction of all updates.
 * Throws DS_ARGUMENT for a ratio of 1 or more, which a Trainer would read as a number of updates.
 */
function readWarmup({ warmup_steps: steps, warmup_ratio: ratio }: TrainArguments) {
  if (ratio !== undefined && !(ratio >= 0 && ratio < 1)) {
    const hint = 'Use --warmup_steps for a number of updates.';
    throw argumentError('--warmup_ratio', 'a fraction of all updates in [0, 1)', `${ratio}`, hint);
  }
  return steps || ratio;
}

/** Names of schedule options here, by their names in lr_scheduler_kwargs. */
const SCHEDULE_NAMES: Readonly<Record<string, keyof typeof SCHEDULE>> = Object.fromEntries(
  keysOf(SCHEDULE).flatMap((name) =>
    (SCHEDULE[name].elsewhere?.match(/\w+/g) ?? []).map((other) => [other, name]),
  ),
);

function readSchedule(args: TrainArguments): Schedule | undefined {
  const { lr_scheduler_type: typeName, lr_scheduler_kwargs: parameters } = args;
  if (typeName === undefined && parameters === undefined) return undefined;
  const type = (typeName ?? 'linear') as 'linear';
  const options: Record<string, unknown> = {};
  for (const [name, value] of Object.entries(parameters ?? {})) {
    const optionName = ownValue(SCHEDULE_NAMES, name);
    const location = `--lr_scheduler_kwargs ${name}`;
    if (!optionName)
      throw argumentError(location, Object.keys(SCHEDULE_NAMES).join(', '), `"${name}"`);
    if (Object.hasOwn(options, optionName))
      throw argumentError(location, 'one value for this option', 'two names of the same option');
    options[optionName] = SCHEDULE[optionName].read(location, value);
  }
  return Object.keys(options).length === 0 ? type : { type, ...options };
}

/**
 * Returns the loading options. Throws DS_ARGUMENT for options that a stream does not support.
 * openRows() sets the order of a stream.
 */
function readLoading(args: TrainArguments): TrainerOptions['data'] {
  const loading = readOptionsOf(LOADING, args);
  const { sampling = args.group_by_length ? 'group_by_length' : undefined } = loading;
  if (!args.streaming) return { ...loading, sampling };
  const streams = 'no --streaming';
  if (sampling === 'group_by_length') {
    const hint = 'Remove one of them: the lengths of streamed rows are unknown.';
    throw argumentError('--train_sampling_strategy group_by_length', streams, 'both', hint);
  }
  if (loading.workers) {
    const hint = 'Use --dataset_num_proc for the threads that read and tokenize a stream.';
    throw argumentError('--dataloader_num_workers', streams, `${loading.workers}`, hint);
  }
  if (loading.dropLast === false) {
    const hint = 'Remove the argument: a stream drops rows that do not fill a batch on every rank.';
    throw argumentError('--dataloader_drop_last', `true, or ${streams}`, 'false', hint);
  }
  return { sampling: sampling === 'sequential' ? undefined : sampling };
}

/** Returns the interval of a strategy: undefined for the Trainer's default, null for never. */
function readInterval(
  what: string,
  strategy: string | undefined,
  steps: number | undefined,
): Interval | undefined | null {
  if (strategy === 'no') return null;
  if (strategy === 'epoch') return 'epoch';
  if (strategy === undefined || strategy === 'steps') return steps;
  throw argumentError(`--${what}_strategy`, '"no", "steps" or "epoch"', JSON.stringify(strategy));
}

function readSave(args: TrainArguments, dir: string): CheckpointOptions | undefined {
  const { save_strategy: strategy, save_steps: steps } = args;
  const every = strategy === 'best' ? 'best' : readInterval('save', strategy, steps);
  const best = readBest(args);
  if (every === null) return undefined;
  return { ...readOptionsOf(SAVING, args), dir, every, best };
}

/** Returns the options of `save.best` if an argument needs the best checkpoint, else undefined. */
function readBest(args: TrainArguments): CheckpointOptions['best'] {
  const { load_best_model_at_end: load = false, metric_for_best_model: metric = 'loss' } = args;
  const argument = findBestArgument(args);
  if (argument === null) return undefined;
  const { save_strategy: saves, eval_strategy: evaluates, validation_file: files } = args;
  // The argument would only mark a checkpoint, and the run writes no checkpoints.
  if (saves === 'no' && argument === METRIC) return undefined;
  if (files === undefined)
    throw argumentError(argument, '--eval_data FILE together with it', 'no --eval_data');
  if (evaluates === 'no')
    throw argumentError(argument, 'an --eval_strategy other than "no"', '"no"');
  if (saves === 'no') throw argumentError(argument, 'a --save_strategy other than "no"', '"no"');
  const name = metric.replace(/^eval_/, '');
  const methodMetrics = METHODS[args.method ?? 'sft']?.metrics;
  const extraMetrics = methodMetrics ?? (args.task === undefined ? [] : TASK_METRICS);
  const known = ['loss', ...extraMetrics];
  if (!known.includes(name)) {
    const hint =
      'Other metrics are computed by a program of your own: `eval.metrics` of its Trainer.';
    const expected = known.map((text) => JSON.stringify(text)).join(', ');
    throw argumentError(
      METRIC,
      `${expected}, with "eval_" or without`,
      JSON.stringify(metric),
      hint,
    );
  }
  return { ...readOptionsOf(BEST, args), metric, load };
}

const METRIC = '--metric_for_best_model';

/** Returns the given argument that needs the best evaluation, or null. */
function findBestArgument(args: TrainArguments): string | null {
  if (args.load_best_model_at_end) return '--load_best_model_at_end';
  if (args.save_strategy === 'best') return '--save_strategy best';
  if (args.early_stopping_patience !== undefined) return '--early_stopping_patience';
  return args.metric_for_best_model === undefined ? null : METRIC;
}

function readEarlyStop(args: TrainArguments): TrainerOptions['earlyStop'] {
  const { patience, threshold } = readOptionsOf(STOPPING, args);
  if (patience !== undefined) return { patience, threshold };
  if (threshold === undefined) return undefined;
  throw argumentError(
    '--early_stopping_threshold',
    '--early_stopping_patience together with it',
    'no --early_stopping_patience',
  );
}

function readReport({ report_to: reportTo, save_strategy: strategy }: TrainArguments) {
  const services = (reportTo ?? []).filter((name) => name !== 'none');
  const reports = services.map((name) => (name === 'all' ? 'tensorboard' : name));
  if (reports.length === 0 || strategy !== 'no') return reports as TrainerOptions['report'];
  throw argumentError('--report_to', 'a --save_strategy other than "no"', reports.join(' '));
}

/**
 * Returns the option `watch`. Every run is recorded in its output folder, unless it is off, so that
 * `ds watch` can show the run later.
 */
function readWatch({ watch }: TrainArguments, dir: string) {
  if (watch === false) return false;
  if (typeof watch === 'number' && !(watch >= 0 && watch < 65_536)) {
    throw argumentError('--watch', 'a port from 0 to 65535', `${watch}`);
  }
  return { dir, port: watch === undefined ? null : watch === true ? undefined : watch };
}

/**
 * Returns the given argument that requests evaluations without --eval_strategy, or null.
 */
function findEvaluationArgument(args: TrainArguments): string | null {
  if (args.eval_on_start) return '--eval_on_start';
  return args.eval_steps === undefined ? null : '--eval_steps';
}

function readEvaluation(args: TrainArguments): Evaluation | null {
  const { eval_strategy: strategy, eval_steps: steps, validation_file: files } = args;
  if (strategy === 'no' && args.eval_on_start) {
    throw argumentError('--eval_on_start', 'an --eval_strategy other than "no"', '"no"');
  }
  if (files === undefined) {
    const argument = strategy === undefined ? findEvaluationArgument(args) : '--eval_strategy';
    if (argument === null || strategy === 'no') return null;
    throw argumentError(
      argument,
      '--eval_data FILE together with it',
      JSON.stringify(strategy) ?? 'no --eval_data',
    );
  }
  const isBySteps = strategy === 'steps' && steps === undefined;
  const every = readInterval('eval', strategy, isBySteps ? (args.logging_steps ?? 10) : steps);
  if (every === null) return null;
  return { ...readOptionsOf(EVALUATION, args), every };
}
