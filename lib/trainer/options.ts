// Declares the options of a Trainer. `ds train`, the documentation and the checks all read these
// declarations. A Trainer checks all options before it builds anything.
import type { DsConfig } from '../../types/config.js';
import type { Distributed } from '../comm/index.js';
import type { Batched } from '../data/index.js';
import { Module } from '../nn/index.js';
import type { Optimizer, ParamGroup, ParamsOf } from '../optim/index.js';
import type { LrSchedule } from '../optim/schedule.js';
import type { Device } from '../runtime/device.js';
import { valueError } from '../runtime/input-errors.js';
import { isObject } from '../runtime/is-object.js';
import {
  boolean,
  callback,
  declareOption,
  integer,
  number,
  type Options,
  object,
  oneOf,
} from '../runtime/option.js';
import { requireFinite } from '../runtime/require-number.js';
import { requireOneOf, requireType } from '../runtime/require-type.js';
import type { Tensor } from '../tensor/index.js';
import { FP8_RECIPES, type Fp8Recipe } from '../tensor/ops/fp8-linear.js';
import { readTokenizer } from '../text/text-options.js';
import { requireWeights } from './class-weights.js';
import { declareLoadingCalls, LOADING, type TrainerDataOptions } from './data-options.js';
import { requireData, type TrainerData } from './data-source.js';
import { EVALUATION, type LossInput, readEval } from './evaluation-options.js';
import { requireSteps } from './interval.js';
import { TrainingMethod } from './methods/method.js';
import { OWN_OPTIMIZERS, type OwnOptimizerName } from './own-optimizer.js';
import { requireSchedule } from './own-schedule.js';
import type { REPORTING } from './report-options.js';

const PRECISIONS = ['fp32', 'fp16', 'bf16'] as const;

/** Dtypes of training, by their names in configurations. */
export type Precision = (typeof PRECISIONS)[number];

/** Options for model and configuration. */
export const MODEL = {
  /** The model to train. */
  model: declareOption(
    requireModel<Module & { readonly hiddenSize?: number }>,
    'the model to train',
    {
      required: true,
      elsewhere: '`model`',
    },
  ),
  /**
   * A tokenizer, or its folder. It is saved with the weights. Its padding token fills rows of text.
   */
  tokenizer: declareOption(
    readTokenizer,
    'tokenizer, or its folder; needed for text, and saved with the weights',
    {
      default: null,
      elsewhere: '`processing_class`',
    },
  ),
  /**
   * A DeepSpeed configuration: its path or its object. These options fill "auto" and missing sizes.
   */
  deepspeed: declareOption(
    requireConfig,
    '[configuration](configuration.md): the path of a `ds_config.json`, or an object',
    {
      default: {},
      shown: 'one rank, or stage 0',
      flag: 'deepspeed',
      syntax: 'text or record',
    },
  ),
  /** Whether unknown keys of the configuration are errors. Default: false. */
  strict: boolean('throw an error for unknown keys of the configuration', { default: false }),
  /** Device of the model: "cpu", "cuda", or "auto" for a GPU if there is one. Default: "auto". */
  device: declareOption((_, value: string | Device) => value, '`"cpu"`, `"cuda"` or `"auto"`', {
    shown: '`"auto"`',
  }),
  /** The job of several ranks, if the program has joined it. Default: the job of the launcher. */
  distributed: declareOption(
    (_, value: Distributed | null) => value,
    'job of several ranks, if the program has joined it by `initDistributed()`',
    { shown: "the launcher's" },
  ),
  /** Signals that end training with a checkpoint. Default: SIGINT, SIGTERM and SIGHUP. */
  stopSignals: declareOption(
    (_, value: readonly NodeJS.Signals[]) => value,
    'signals that end training with a checkpoint',
    { shown: 'SIGINT, SIGTERM, SIGHUP' },
  ),
};

/** Options for the length of a run, the learning rate, the precision and the loss. */
export const OPTIMIZATION = {
  /** Dtype of training, for a configuration without a dtype. Default: "fp32". */
  precision: oneOf(PRECISIONS)('`"bf16"`, `"fp16"`', {
    default: null,
    shown: '`"fp32"`',
    elsewhere: '`bf16`, `fp16`',
  }),
  /** How linear layers compute in FP8. Requires precision "bf16". Default: not in FP8. */
  fp8: oneOf<Fp8Recipe>(FP8_RECIPES)(
    'compute linear layers in [FP8](fp8.md), with this recipe; needs bf16',
    {
      default: null,
      shown: 'none',
      flag: 'fp8',
    },
  ),
  /** Number of passes over the data; may be a fraction. Default: 3. */
  epochs: number('passes over the data; fewer if evaluations get worse', {
    above: 0,
    default: 3,
    flag: 'num_train_epochs',
    also: ['epochs', 'num_epochs'],
  }),
  /** Number of updates, instead of epochs. The data are repeated if necessary. */
  maxSteps: integer('number of updates, in place of `epochs`', {
    min: 1,
    default: null,
    elsewhere: '`max_steps`',
  }),
  /** Samples per micro-batch on one rank. Default: 8. */
  batchSize: integer('samples of a micro-batch on each rank; lower it if memory is short', {
    min: 1,
    default: 8,
    flag: 'per_device_train_batch_size',
    also: ['batch_size', 'per_gpu_train_batch_size'],
  }),
  /** Number of micro-batches per update. Default: 1. */
  accumulation: integer(
    'micro-batches of an update; raise it for a larger batch in the same memory',
    {
      min: 1,
      default: 1,
      flag: 'gradient_accumulation_steps',
    },
  ),
  /** Learning rate. Default: 5e-5, or the method's default. */
  lr: number('learning rate: size of an update; lower it if the loss rises', {
    min: 0,
    default: 5e-5,
    flag: 'learning_rate',
    also: ['lr'],
  }),
  /** Schedule of the learning rate, for a configuration without a scheduler. Default: "linear". */
  schedule: declareOption(requireSchedule, '[schedule](#schedules) of the learning rate', {
    default: 'linear',
    elsewhere: '`lr_scheduler_type`',
  }),
  /**
   * Number of updates of the rise of the learning rate from 0, or their fraction of all updates
   * (less than 1). Default: 0.
   */
  warmup: declareOption(
    requireSteps,
    'updates in which the rate rises from 0; below 1: a share of all updates',
    {
      default: 0,
      elsewhere: '`warmup_steps`, `warmup_ratio`',
    },
  ),
  /**
   * Weight decay of matrices and of DoRA's magnitudes. Biases and norms do not decay. Default: 0.
   */
  weightDecay: number('weight decay of matrices and [DoRA](lora.md#dora) magnitudes', {
    min: 0,
    default: 0,
    flag: 'weight_decay',
  }),
  /** Betas of AdamW. Default: [0.9, 0.999]. */
  betas: declareOption(readBetas, "how slowly AdamW's two moments change; rarely changed", {
    default: [0.9, 0.999],
    elsewhere: '`adam_beta1`, `adam_beta2`',
  }),
  /** Epsilon of AdamW. Default: 1e-8. */
  eps: number("AdamW's epsilon, which prevents divisions by 0; rarely changed", {
    min: 0,
    default: 1e-8,
    flag: 'adam_epsilon',
  }),
  /**
   * Maximum norm of the gradients: larger gradients are scaled down. 0: no clipping. Default: 1.
   */
  maxGradNorm: number('largest gradient norm; larger gradients are scaled down. 0: no clipping', {
    min: 0,
    default: 1,
    flag: 'max_grad_norm',
  }),
  /**
   * Name of the optimizer, for a configuration without an optimizer. A function returns an
   * optimizer, which replaces the configuration's. Default: "AdamW".
   */
  optimizer: declareOption(
    requireOptimizer<OwnOptimizerName | ((params: ParamsOf<ParamGroup>) => Optimizer)>,
    '`"AdamW8bit"` for less memory, or a function that builds your own',
    { shown: '`"AdamW"`', elsewhere: '`optim`, `optimizers`' },
  ),
  /** Returns a schedule that replaces `schedule` and that of the configuration. */
  lrScheduler: callback<(optimizer: Optimizer) => LrSchedule | readonly LrSchedule[]>(
    'a function that builds your own',
    { shown: '`schedule`', elsewhere: '`optimizers`' },
  ),
  /** A training method such as dpo(). Default: next tokens, or labels. */
  method: declareOption(requireMethod, '[preferences](post-training.md) in place of next tokens', {
    default: null,
    shown: 'next tokens',
  }),
  /** Label smoothing: the probability that is distributed evenly over all tokens. Default: 0. */
  labelSmoothing: number(
    'share of each target that all tokens get, such as 0.1, against overconfidence',
    {
      min: 0,
      below: 1,
      default: 0,
      flag: 'label_smoothing_factor',
    },
  ),
  /** Factors of the labels in the loss of a classifier, in order or by name. Default: 1 each. */
  classWeights: declareOption(
    requireWeights,
    'factors of labels in the loss of a [classifier](classification.md)',
    { default: null, shown: '1', flag: 'class_weights', syntax: 'record' },
  ),
  /**
   * Alpha of NEFTune's noise on token embeddings (Jain et al. 2023): the noise is between -1 and 1
   * times alpha / sqrt(T C). Default: no noise.
   */
  neftuneNoiseAlpha: number('noise on token embeddings (NEFTune), such as 5, for small data sets', {
    min: 0,
    default: null,
    flag: 'neftune_noise_alpha',
  }),
  /** Seed of dropout and, unless `data.seed` is given, of the order of samples. Default: 42. */
  seed: integer('seed of dropout and of the order of the data', {
    min: 0,
    default: 42,
    flag: 'seed',
  }),
};

/** Declares the options of a Trainer that depend on the type of samples. */
export const declareSampleOptions = <Sample, Batch>() => ({
  /** Training data. Not required for evaluate() and predict(). */
  train: declareOption(requireData<TrainerData<Sample, Batch>>, 'training [data](#data)', {
    default: null,
    elsewhere: '`train_dataset`',
  }),
  /** Evaluation data, or options with data. With data only, an evaluation follows each epoch. */
  eval: declareOption(readEval<Sample, Batch>, 'evaluation [data](#data), or its options', {
    default: null,
    fields: EVALUATION,
    elsewhere: '`eval_dataset`',
  }),
  /** Order and batching of the samples. */
  data: object<TrainerDataOptions<Sample, Batch>>()({
    ...LOADING,
    ...declareLoadingCalls<Sample, Batch>(),
  }),
  /**
   * Returns the mean loss of a micro-batch per counted target, f32. Required unless the model is a
   * CausalLM or a TaskModel.
   */
  loss: callback<(input: LossInput<Batch>) => Tensor>('[your own loss](#loss)', {
    shown: "the model's",
    elsewhere: '`compute_loss_func`',
  }),
  /**
   * Returns the weight of a micro-batch in an update. Default: the number of its labels or targets
   * that are not -100; without labels, the number of its samples.
   */
  count: callback<(batch: Batch) => number>('weight of a micro-batch in an update', {
    shown: 'its targets, or samples',
  }),
});

/** Options of a Trainer. Names as in PyTorch and DeepSpeed (`weight_decay`) are accepted too. */
export interface TrainerOptions<Sample = unknown, Batch = Batched<Sample>>
  extends Options<typeof MODEL>,
    Options<typeof OPTIMIZATION>,
    Options<typeof REPORTING>,
    Options<ReturnType<typeof declareSampleOptions<Sample, Batch>>> {}

function requireModel<Model extends Module>(op: string, model: Model): Model {
  if (model instanceof Module && typeof model.forward === 'function') return model;
  throw valueError(op, 'an object of a class that extends nn.Module', model);
}

/** Returns `given`. initialize() checks its keys. */
function requireConfig(op: string, given: string | DsConfig): string | DsConfig {
  if (typeof given === 'string' || isObject<DsConfig>(given)) return given;
  throw valueError(op, 'the path of a ds_config.json, or its object', given);
}

function requireMethod(op: string, given: TrainingMethod): TrainingMethod {
  if (given instanceof TrainingMethod) return given;
  throw valueError(op, 'a method such as dpo({ ... })', given);
}

function requireOptimizer<Given>(op: string, given: Given): Given {
  if (typeof given === 'string') requireOneOf(op, given, Object.keys(OWN_OPTIMIZERS));
  else requireType(op, given, 'function');
  return given;
}

function readBetas(op: string, given: readonly [number, number]): readonly [number, number] {
  if (!Array.isArray(given) || given.length !== 2) {
    throw valueError(op, 'two numbers, such as [0.9, 0.999]', given);
  }
  const [first, second] = given;
  return [requireFinite(op, first, 0, 1), requireFinite(op, second, 0, 1)];
}
