// Declares the option `eval` of a Trainer: data, times and metrics of evaluations.

import type { MetricSums } from '../models/tasks/metrics.js';
import { argumentError } from '../runtime/input-errors.js';
import {
  boolean,
  callback,
  declareOption,
  integer,
  number,
  type Options,
  readDeclared,
  type Settings,
} from '../runtime/option.js';
import { requireInteger } from '../runtime/require-number.js';
import type { Tensor } from '../tensor/index.js';
import { isServable, requireData, type TrainerData } from './data-source.js';
import { requireEvery } from './interval.js';

export type { MetricSums };

/** The input of a loss or a metric of the user. */
export interface LossInput<Batch> {
  /** Runs the model through the engine. */
  forward: (...inputs: unknown[]) => Tensor;
  /** The micro-batch, on the engine's device. */
  batch: Batch;
}

/** Options of evaluations that do not depend on the type of samples. */
export const EVALUATION = {
  /** When evaluations run. Default: "epoch". */
  every: declareOption(
    requireEvery,
    'when to evaluate: a number of updates, a share of them below 1, or `"epoch"`',
    {
      default: 'epoch',
      elsewhere: '`eval_strategy`, `eval_steps`',
    },
  ),
  /** Samples per evaluation batch on one rank. Default: `batchSize`. */
  batchSize: integer('samples of an evaluation batch on each rank', {
    min: 1,
    shown: '`batchSize`',
    flag: 'per_device_eval_batch_size',
    also: ['eval_batch_size', 'per_gpu_eval_batch_size'],
  }),
  /** Maximum number of batches of an evaluation. Default: all. */
  maxBatches: declareOption(requireMaxBatches, 'most batches of an evaluation', {
    default: Number.POSITIVE_INFINITY,
    shown: 'all',
  }),
  /** Whether an evaluation runs before the first update. Default: false. */
  atStart: boolean('evaluate before the first update', { default: false, flag: 'eval_on_start' }),
  /** Number of updates (with "epoch": of epochs) before the first evaluation. Default: 0. */
  delay: number('updates (or epochs) before the first evaluation', {
    min: 0,
    default: 0,
    flag: 'eval_delay',
  }),
  /**
   * Whether evaluations compute `accuracy`, the fraction of counted targets that have the largest
   * logit. It needs no additional pass. Only for language models without an own `loss`.
   * Default: false.
   */
  accuracy: boolean("share of targets that are the model's first choice", {
    default: false,
    elsewhere: 'TRL: `mean_token_accuracy`',
  }),
};

/** Declares the options of `eval` that depend on the type of samples. */
export const declareEvaluationCalls = <Sample, Batch>() => ({
  /** Samples for evaluations. Each is evaluated once, in order. */
  data: declareOption(
    requireEvalData<TrainerData<Sample, Batch>>,
    'the data; `eval: data` is short for it',
    { required: true, elsewhere: '`eval_dataset`' },
  ),
  /** Returns additional metrics of a batch, by name, as sums and counts. */
  metrics: callback<(input: LossInput<Batch>) => MetricSums>('[metrics of your own](#metrics)', {
    shown: 'none',
    elsewhere: '`compute_metrics`',
  }),
});

/** Options of evaluations. */
export interface EvalOptions<Sample, Batch>
  extends Options<typeof EVALUATION>,
    Options<ReturnType<typeof declareEvaluationCalls<Sample, Batch>>> {}

/** EvalOptions with defaults. If `batchSize` is null, the batch size of training is used. */
export type EvalSettings<Sample, Batch> = Settings<typeof EVALUATION> &
  Settings<ReturnType<typeof declareEvaluationCalls<Sample, Batch>>>;

/**
 * Reads the option `eval`: evaluation data, or options with data. Throws DS_ARGUMENT for an unknown
 * or invalid option.
 */
export function readEval<Sample, Batch>(
  op: string,
  given: TrainerData<Sample, Batch> | EvalOptions<Sample, Batch>,
): EvalSettings<Sample, Batch> {
  const options = isServable(given) ? { data: given } : given;
  const declared = { ...declareEvaluationCalls<Sample, Batch>(), ...EVALUATION };
  return readDeclared(op, options, declared, '.');
}

function requireEvalData<Data extends object>(op: string, given: Data): Data {
  const data = requireData(op, given);
  if (typeof data === 'function' || !('length' in data) || data.length !== 0) return data;
  throw argumentError(op, 'evaluation data with samples, or no `eval`', 'no samples');
}

function requireMaxBatches(op: string, given: number): number {
  return given === Number.POSITIVE_INFINITY ? given : requireInteger(op, given, 1);
}
