// Arguments of `ds train` as the options of a Trainer.

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
import { TASK_METRICS } from '../task-metrics.js';
import { fromArguments, type TrainArguments } from './arguments.js';
import { METHODS } from './methods.js';

/** How a Trainer evaluates; its data come later. */
export type Evaluation = Omit<EvalOptions<unknown, unknown>, 'data'>;

/** Options of a Trainer, without its model and data. */
interface TrainerPart {
  options: Omit<TrainerOptions, 'model' | 'tokenizer' | 'train' | 'eval'>;
  /** Null without evaluation data, or if no argument requests evaluations. */
  evaluation: Evaluation | null;
}

/**
 * Converts `args` to options. Missing arguments stay undefined, so the Trainer's defaults apply.
 * Throws DS_ARGUMENT for invalid values and for arguments that exclude each other.
 */
export function trainerPart(args: TrainArguments, dir: string): TrainerPart {
  const { adam_beta1: beta1, adam_beta2: beta2, max_steps: steps = -1 } = args;
  const logging = everyOf('logging', args.logging_strategy, args.logging_steps);
  return {
    options: {
      ...fromArguments(MODEL, args),
      ...fromArguments(OPTIMIZATION, args),
      ...fromArguments(REPORTING, args),
      precision: precisionOf(args),
      maxSteps: steps > 0 ? steps : undefined,
      schedule: scheduleOf(args),
      warmup: warmupOf(args),
      betas:
        beta1 === undefined && beta2 === undefined ? undefined : [beta1 ?? 0.9, beta2 ?? 0.999],
      optimizer: optimizerOf(args.optim),
      data: { ...loadingOf(args), seed: args.data_seed, sequenceLength: args.max_length },
      log: { ...fromArguments(LOGGING, args), every: logging === null ? NEVER : logging },
      save: saveOf(args, dir),
      earlyStop: earlyStopOf(args),
      report: reportOf(args),
      watch: watchOf(args, dir),
      progress: args.disable_tqdm === undefined ? undefined : !args.disable_tqdm,
      device: args.use_cpu ? 'cpu' : args.device,
    },
    evaluation: evaluationOf(args),
  };
}

/** Updates that no run has. */
const NEVER = Number.MAX_SAFE_INTEGER;

/**
 * With a ds_config, --fp16_full_eval means fp16 training, by the table of "auto" values. Without
 * one it throws DS_ARGUMENT, because evaluations use the dtype of training.
 */
function precisionOf(args: TrainArguments): Precision | undefined {
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
 * transformers' names of AdamW with moments in f32; the configuration has other optimizers. Where
 * these are paged there, `offload_optimizer` keeps them on the host here.
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

/** transformers' names of AdamW with moments in 8 bits. */
const ADAMW_8BIT = ['adamw_8bit', 'adamw_bnb_8bit', 'paged_adamw_8bit'];

/** Undefined for AdamW: the configuration may have another optimizer. */
function optimizerOf(optim: string | undefined): 'AdamW8bit' | undefined {
  if (optim === undefined || ADAMW.includes(optim)) return undefined;
  if (ADAMW_8BIT.includes(optim)) return 'AdamW8bit';
  const hint = 'Set other optimizers as "optimizer" in the DeepSpeed configuration.';
  throw argumentError('--optim', [...ADAMW, ...ADAMW_8BIT].join(', '), JSON.stringify(optim), hint);
}

/** Steps, else the share; a ratio of 1 would be one step of a Trainer's. */
function warmupOf({ warmup_steps: steps, warmup_ratio: ratio }: TrainArguments) {
  if (ratio !== undefined && !(ratio >= 0 && ratio < 1)) {
    const hint = 'Use --warmup_steps for a number of updates.';
    throw argumentError('--warmup_ratio', 'a fraction of all updates in [0, 1)', `${ratio}`, hint);
  }
  return steps || ratio;
}

/** Names in lr_scheduler_kwargs, and ours. */
const SCHEDULE_NAMES: Readonly<Record<string, keyof typeof SCHEDULE>> = Object.fromEntries(
  keysOf(SCHEDULE).flatMap((name) =>
    (SCHEDULE[name].elsewhere?.match(/\w+/g) ?? []).map((other) => [other, name]),
  ),
);

function scheduleOf(args: TrainArguments): Schedule | undefined {
  const { lr_scheduler_type: given, lr_scheduler_kwargs: own } = args;
  if (given === undefined && own === undefined) return undefined;
  const type = (given ?? 'linear') as 'linear';
  const options: Record<string, unknown> = {};
  for (const [name, value] of Object.entries(own ?? {})) {
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

/** Throws DS_ARGUMENT for options that streams do not have; openRows() sets a stream's order. */
function loadingOf(args: TrainArguments): TrainerOptions['data'] {
  const given = fromArguments(LOADING, args);
  const { sampling = args.group_by_length ? 'group_by_length' : undefined } = given;
  if (!args.streaming) return { ...given, sampling };
  const streams = 'no --streaming';
  if (sampling === 'group_by_length') {
    const hint = 'Remove one of them: the lengths of streamed rows are unknown.';
    throw argumentError('--train_sampling_strategy group_by_length', streams, 'both', hint);
  }
  if (given.workers) {
    const hint = 'Use --dataset_num_proc for the threads that read and tokenize a stream.';
    throw argumentError('--dataloader_num_workers', streams, `${given.workers}`, hint);
  }
  if (given.dropLast === false) {
    const hint = 'Remove the argument: a stream drops rows that do not fill a batch on every rank.';
    throw argumentError('--dataloader_drop_last', `true, or ${streams}`, 'false', hint);
  }
  return { sampling: sampling === 'sequential' ? undefined : sampling };
}

/** By a strategy and its steps: undefined for the default, null for never. */
function everyOf(
  what: string,
  strategy: string | undefined,
  steps: number | undefined,
): Interval | undefined | null {
  if (strategy === 'no') return null;
  if (strategy === 'epoch') return 'epoch';
  if (strategy === undefined || strategy === 'steps') return steps;
  throw argumentError(`--${what}_strategy`, '"no", "steps" or "epoch"', JSON.stringify(strategy));
}

function saveOf(args: TrainArguments, dir: string): CheckpointOptions | undefined {
  const { save_strategy: strategy, save_steps: steps } = args;
  const every = strategy === 'best' ? 'best' : everyOf('save', strategy, steps);
  const best = bestOf(args);
  if (every === null) return undefined;
  return { ...fromArguments(SAVING, args), dir, every, best };
}

/** The metric of the best checkpoint, if an argument needs it. */
function bestOf(args: TrainArguments): CheckpointOptions['best'] {
  const { load_best_model_at_end: load = false, metric_for_best_model: metric = 'loss' } = args;
  const argument = argumentForBest(args);
  if (argument === null) return undefined;
  const { save_strategy: saves, eval_strategy: evaluates, validation_file: files } = args;
  if (saves === 'no' && argument === METRIC) return undefined; // It would only mark a checkpoint.
  if (files === undefined)
    throw argumentError(argument, '--eval_data FILE together with it', 'no --eval_data');
  if (evaluates === 'no')
    throw argumentError(argument, 'an --eval_strategy other than "no"', '"no"');
  if (saves === 'no') throw argumentError(argument, 'a --save_strategy other than "no"', '"no"');
  const name = metric.replace(/^eval_/, '');
  const ofMethod = METHODS[args.method ?? 'sft']?.metrics;
  const own = ofMethod ?? (args.task === undefined ? [] : TASK_METRICS);
  const known = ['loss', ...own];
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
  return { ...fromArguments(BEST, args), metric, load };
}

const METRIC = '--metric_for_best_model';

/** The argument that needs the best evaluation, or null. */
function argumentForBest(args: TrainArguments): string | null {
  if (args.load_best_model_at_end) return '--load_best_model_at_end';
  if (args.save_strategy === 'best') return '--save_strategy best';
  if (args.early_stopping_patience !== undefined) return '--early_stopping_patience';
  return args.metric_for_best_model === undefined ? null : METRIC;
}

function earlyStopOf(args: TrainArguments): TrainerOptions['earlyStop'] {
  const { patience, threshold } = fromArguments(STOPPING, args);
  if (patience !== undefined) return { patience, threshold };
  if (threshold === undefined) return undefined;
  throw argumentError(
    '--early_stopping_threshold',
    '--early_stopping_patience together with it',
    'no --early_stopping_patience',
  );
}

function reportOf({ report_to: given, save_strategy: strategy }: TrainArguments) {
  const services = (given ?? []).filter((name) => name !== 'none');
  const named = services.map((name) => (name === 'all' ? 'tensorboard' : name));
  if (named.length === 0 || strategy !== 'no') return named as TrainerOptions['report'];
  throw argumentError('--report_to', 'a --save_strategy other than "no"', named.join(' '));
}

/** Every run is recorded in its output folder, so that `ds watch` can show it later. */
function watchOf({ watch }: TrainArguments, dir: string) {
  if (watch === false) return false;
  if (typeof watch === 'number' && !(watch >= 0 && watch < 65_536)) {
    throw argumentError('--watch', 'a port from 0 to 65535', `${watch}`);
  }
  return { dir, port: watch === undefined ? null : watch === true ? undefined : watch };
}

/** The argument that implies evaluations without a strategy, or null. */
function argumentForEvaluation(args: TrainArguments): string | null {
  if (args.eval_on_start) return '--eval_on_start';
  return args.eval_steps === undefined ? null : '--eval_steps';
}

function evaluationOf(args: TrainArguments): Evaluation | null {
  const { eval_strategy: strategy, eval_steps: steps, validation_file: files } = args;
  if (strategy === 'no' && args.eval_on_start) {
    throw argumentError('--eval_on_start', 'an --eval_strategy other than "no"', '"no"');
  }
  if (files === undefined) {
    const argument = strategy === undefined ? argumentForEvaluation(args) : '--eval_strategy';
    if (argument === null || strategy === 'no') return null;
    throw argumentError(
      argument,
      '--eval_data FILE together with it',
      JSON.stringify(strategy) ?? 'no --eval_data',
    );
  }
  const isBySteps = strategy === 'steps' && steps === undefined;
  const every = everyOf('eval', strategy, isBySteps ? (args.logging_steps ?? 10) : steps);
  if (every === null) return null;
  return { ...fromArguments(EVALUATION, args), every };
}
