// How Hugging Face's Trainer fills "auto" values, as a table.

/**
 * Values of the model and of the training that fill "auto"; missing values fill nothing.
 */
export interface AutoSources {
  /** Values of the model. */
  model?: {
    /** Width of the residual stream; it determines bucket sizes. */
    hiddenSize?: number;
  };
  /** Values of the training. */
  training?: {
    /** Tokens per sample, for the plan. Default: 1024, or the model's limit. */
    sequenceLength?: number;
    lr?: number;
    /** Rate at the start of the warm-up; default 0. */
    minLr?: number;
    betas?: readonly [number, number];
    eps?: number;
    weightDecay?: number;
    /** Updates of the warm-up. */
    warmupSteps?: number;
    /** All updates, including the warm-up. */
    totalSteps?: number;
    maxGradNorm?: number;
    perDeviceBatchSize?: number;
    accumulationSteps?: number;
    fp16?: boolean;
    bf16?: boolean;
    fp8?: boolean;
    fp8Recipe?: 'tensorwise' | 'rowwise' | 'blockwise';
  };
  /**
   * Whether the configuration must equal `training`, as in Hugging Face's Trainer: different
   * values are refused in one error, and missing batch sizes, precision and clipping are added.
   * Default: false, so `training` only fills "auto".
   */
  mustMatch?: boolean;
}

type Training = NonNullable<AutoSources['training']>;

/** Keys that the plan can fill, by dotted path. */
export const PLANNED = [
  'zero_optimization.stage',
  'zero_optimization.offload_optimizer.device',
  'zero_optimization.offload_optimizer.ratio',
  'zero_optimization.offload_param.device',
] as const;

/** Returns whether the plan fills "auto" at the dotted path. */
export const isPlanned = (path: string): boolean => PLANNED.some((item) => item === path);

/** Source of one key. */
export interface AutoRow {
  /** Name of the source in origins and errors. */
  readonly of: string;
  /**
   * The source's names in a Trainer's options and in Hugging Face's arguments, for errors. Null if
   * a value in the file may differ from the source.
   */
  readonly argument: string | null;
  /** The ZeRO stage at which the Trainer fills the key; absent: every stage. */
  readonly stage?: number;
  /** Returns the value; undefined if the sources lack it, or if it follows from other keys. */
  readonly value: (sources: AutoSources) => unknown;
  /** Returns the value of a key that follows from other keys. */
  readonly total?: (training: Training, worldSize: number) => number | undefined;
}

function trainingRow(name: keyof Training, argument: string): AutoRow {
  return { of: `training.${name}`, argument, value: (sources) => sources.training?.[name] };
}

function hiddenSizeRow(of: string, size: (hiddenSize: number) => number, stage?: number): AutoRow {
  const value = ({ model }: AutoSources) =>
    model?.hiddenSize === undefined ? undefined : Math.floor(size(model.hiddenSize));
  return { of, argument: null, value, ...(stage === undefined ? {} : { stage }) };
}

function samplesAnUpdate(
  { perDeviceBatchSize: samples, accumulationSteps: steps }: Training,
  worldSize: number,
): number | undefined {
  return samples === undefined || steps === undefined ? undefined : worldSize * samples * steps;
}

/** Rules by canonical path without `stage3_`. Source: Transformers, integrations/deepspeed.py. */
const TABLE: Partial<Record<string, AutoRow>> = {
  train_batch_size: {
    of: 'training.perDeviceBatchSize x accumulationSteps x world size',
    argument:
      'batchSize x accumulation x world size, --per_device_train_batch_size x --gradient_accumulation_steps x world size',
    value: () => undefined,
    total: samplesAnUpdate,
  },
  train_micro_batch_size_per_gpu: trainingRow(
    'perDeviceBatchSize',
    'batchSize, --per_device_train_batch_size',
  ),
  gradient_accumulation_steps: trainingRow(
    'accumulationSteps',
    'accumulation, --gradient_accumulation_steps',
  ),
  gradient_clipping: trainingRow('maxGradNorm', 'maxGradNorm, --max_grad_norm'),
  'optimizer.params.lr': trainingRow('lr', 'lr, --learning_rate'),
  'optimizer.params.betas': trainingRow('betas', 'betas, --adam_beta1 and --adam_beta2'),
  'optimizer.params.eps': trainingRow('eps', 'eps, --adam_epsilon'),
  'optimizer.params.weight_decay': trainingRow('weightDecay', 'weightDecay, --weight_decay'),
  'scheduler.params.warmup_min_lr': {
    of: 'training.minLr',
    argument: null,
    value: ({ training: given }) => given && (given.minLr ?? 0),
  },
  'scheduler.params.warmup_max_lr': trainingRow('lr', 'lr, --learning_rate'),
  'scheduler.params.warmup_num_steps': trainingRow('warmupSteps', 'warmup, --warmup_steps'),
  'scheduler.params.total_num_steps': trainingRow(
    'totalSteps',
    'maxSteps or epochs, --max_steps or --num_train_epochs',
  ),
  'fp16.enabled': trainingRow('fp16', 'precision, --fp16'),
  'bf16.enabled': trainingRow('bf16', 'precision, --bf16'),
  'fp8.enabled': trainingRow('fp8', 'fp8, --fp8'),
  'fp8.recipe': trainingRow('fp8Recipe', 'fp8, --fp8'),
  'amp.enabled': {
    of: 'training, because apex is not supported',
    argument: null,
    value: ({ training: given }) => given && false,
  },
  'zero_optimization.reduce_bucket_size': hiddenSizeRow('model.hiddenSize^2', (h) => h * h),
  'zero_optimization.prefetch_bucket_size': hiddenSizeRow(
    '0.9 model.hiddenSize^2',
    (h) => 0.9 * h * h,
    3,
  ),
  'zero_optimization.param_persistence_threshold': hiddenSizeRow(
    '10 model.hiddenSize',
    (h) => 10 * h,
    3,
  ),
};

/** Returns whether the value that fills the dotted path depends on the ZeRO stage. */
export const isOfStage = (path: string): boolean =>
  TABLE[path.replace('.stage3_', '.')]?.stage !== undefined;

/** Returns the row of a dotted path for a configuration with ZeRO `stage`. */
export function rowOf(path: string, stage: unknown): AutoRow | undefined {
  const row = TABLE[path.replace('.stage3_', '.')];
  return row?.stage === undefined || row.stage === Number(stage) ? row : undefined;
}

/** Paths of the keys that `mustMatch` adds to a configuration without them. */
export const SUPPLIED: readonly (readonly [string] | readonly [section: string, key: string])[] = [
  ['train_micro_batch_size_per_gpu'],
  ['gradient_accumulation_steps'],
  ['gradient_clipping'],
  ['fp16', 'enabled'],
  ['bf16', 'enabled'],
  ['fp8', 'enabled'],
  ['fp8', 'recipe'],
];
