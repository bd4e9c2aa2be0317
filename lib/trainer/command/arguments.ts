// Declares the arguments of `ds train`, by the names of transformers, TRL and PEFT. Options of the
// Trainer and of methods declare their own arguments (`flag`).
import { GENERATION_CONFIG } from '../../inference/sampling-options.js';
import {
  type Arguments,
  boolean,
  type Declared,
  declareOption,
  integer,
  number,
  type Options,
  string,
  texts,
} from '../../runtime/option.js';
import { definedOnly } from '../../runtime/options.js';
import { LOADING } from '../data-options.js';
import { EVALUATION } from '../evaluation-options.js';
import { CPO } from '../methods/cpo.js';
import { DPO } from '../methods/dpo.js';
import { GKD } from '../methods/gkd.js';
import { GRPO, RLOO } from '../methods/grpo.js';
import { KTO } from '../methods/kto.js';
import { ORPO } from '../methods/orpo.js';
import { REWARD } from '../methods/reward.js';
import { MODEL, OPTIMIZATION } from '../options.js';
import { BEST, LOGGING, REPORTING, SAVING, STOPPING } from '../report-options.js';

/** Default and other names of an argument, for the help. */
interface ArgumentTexts {
  shown?: string;
  also?: readonly string[];
}

const acceptAny = <Value>(_: string, value: Value): Value => value;
const declareTextOrSwitch = (help: string, about: ArgumentTexts = {}) =>
  declareOption(acceptAny<string | boolean>, help, { ...about, syntax: 'text or switch' });
const declareRecord = (help: string) =>
  declareOption(acceptAny<object>, help, { syntax: 'record' });

/** Arguments for model, data and output. */
const FILES = {
  /** Folder of the model (config.json, weights, tokenizer), or its name on the hub. */
  model_name_or_path: string('folder of the model, or its name such as Qwen/Qwen3-0.6B', {
    also: ['model'],
  }),
  /**
   * Branch, tag or commit of a model on the hub. It has no effect on a folder, as in transformers.
   */
  model_revision: string('branch, tag or commit, if the model is a name on the hub', {
    shown: '"main"',
  }),
  /** Folder or file of the configuration of a model with new weights. */
  config_name: string('config.json of a new model with random weights, in place of --model'),
  /** The task, which selects the head of the model. Default: causal language model. */
  task: string('head to train, such as "sequence-classification" (docs/classification.md)', {
    shown: '"causal-lm"',
  }),
  /** Folder or name of the tokenizer. Default: the model's. */
  tokenizer_name: string('folder or name of the tokenizer', {
    shown: "the model's",
    also: ['tokenizer'],
  }),
  /** A chat template: a file, the Jinja text itself, or the folder or name of a tokenizer. */
  chat_template_path: string('Jinja file or tokenizer with the chat template to train with', {
    shown: "the tokenizer's",
    also: ['chat_template'],
  }),
  /** Rows for training: files, folders and patterns. */
  train_file: texts('rows to train on: files, folders or patterns such as data/*.jsonl', {
    also: ['data', 'train_files', 'data_path'],
  }),
  /** Rows for evaluation: files, folders and patterns. */
  validation_file: texts('rows to evaluate on, which training does not use', {
    also: ['eval_data', 'validation_files', 'eval_data_path'],
  }),
  output_dir: string('folder of the trained weights, checkpoints and reports', {
    also: ['output'],
  }),
};

/** Arguments for the start and the end of a run. */
const RUN = {
  resume_from_checkpoint: declareTextOrSwitch(
    'continue from the newest checkpoint, or from this folder',
  ),
  /** Resumes with the first row of the data instead of the next one. */
  ignore_data_skip: boolean('resume at the first row of the data', { shown: 'false' }),
  /** Kind of device. The launcher chooses the GPU of each rank. */
  device: string('"cpu", "cuda" or "auto"', { shown: '"auto"' }),
  use_cpu: boolean('same as --device cpu', { shown: 'false', also: ['no_cuda'] }),
  /** Prompt of the sample that is printed after training. --no_sample prints no sample. */
  sample: declareTextOrSwitch('prompt to continue after training; --no_sample turns it off', {
    shown: 'the first row with one',
  }),
  sample_tokens: integer('number of tokens to generate after this prompt', { min: 1, shown: '48' }),
};

/** Arguments for rows and samples. */
const ROWS = {
  max_length: integer('longest sample, in tokens; lower it if memory is short', {
    shown: "1024, or the model's maximum",
    also: ['max_seq_length', 'block_size', 'cutoff_len', 'model_max_length'],
  }),
  packing: boolean('put several rows into each sample: faster for short rows', { shown: 'false' }),
  eval_packing: boolean('the same for evaluations', {
    shown: '--packing',
  }),
  packing_strategy: string(
    '"bfd" cuts rows that are too long, "bfd_split" keeps the rest as more samples',
    {
      shown: '"bfd"',
    },
  ),
  completion_only_loss: boolean('learn the completions only, not the prompts', {
    shown: 'true for prompt-completion rows',
  }),
  assistant_only_loss: boolean('learn the answers of the assistant only, not the questions', {
    shown: 'false',
  }),
  columns: declareOption(
    acceptAny<Readonly<Record<string, string>>>,
    'new names of columns, such as question=prompt,answer=completion',
    { syntax: 'pair list', shown: 'none' },
  ),
  dataset_text_field: string('key of a row that contains its text', { shown: '"text"' }),
  /** For rows with labels: the keys of one or two texts. */
  text_column_names: texts('keys of one or both texts in a row with a label', {
    shown: 'those of known sets',
  }),
  label_column_name: string('key of the label in a row', { shown: '"label"' }),
  problem_type: string('"regression", or "single_" or "multi_label_classification"', {
    shown: 'by the labels',
  }),
  dataset_num_proc: integer('threads that read rows and make tokens', {
    also: ['preprocessing_num_workers'],
  }),
  dataset_cache_dir: string('folder that keeps the tokens, so that the next run starts faster'),
  streaming: boolean('read rows during training; use it if the data do not fit host memory', {
    shown: 'false',
  }),
  group_by_length: boolean('same as --train_sampling_strategy group_by_length', {
    shown: 'false',
  }),
};

/** Arguments that determine an option of the Trainer together. */
const LEARNING = {
  /** -1: no limit, as in transformers. */
  max_steps: integer('number of updates, in place of epochs'),
  lr_scheduler_type: string('how the learning rate changes, such as linear, cosine or constant', {
    shown: '"linear"',
  }),
  lr_scheduler_kwargs: declareRecord('parameters of the schedule, such as {"min_lr": 1e-6}'),
  warmup_steps: number('updates in which the rate rises from 0; below 1: a share of all updates', {
    shown: '0',
  }),
  warmup_ratio: number('share of all updates in which the rate rises from 0', { shown: '0' }),
  adam_beta1: number("decay of AdamW's first moment; rarely changed", {
    min: 0,
    below: 1,
    shown: '0.9',
  }),
  adam_beta2: number("decay of AdamW's second moment; rarely changed", {
    min: 0,
    below: 1,
    shown: '0.999',
  }),
  optim: string(
    'optimizer: "adamw_torch", or "adamw_8bit" for less memory; others in --deepspeed',
    {
      shown: '"adamw_torch"',
    },
  ),
  fp16: boolean('train in fp16, with loss scaling', { shown: 'false' }),
  bf16: boolean('train in bf16; the usual choice on a GPU', { shown: 'false' }),
  fp16_full_eval: boolean('evaluate in fp16, as training does', { shown: 'false' }),
  bf16_full_eval: boolean('evaluate in bf16, as training does', { shown: 'false' }),
  gradient_checkpointing: boolean('recompute activations during backward: less memory, more time', {
    shown: 'false',
  }),
  /** For a model with experts: adds the load-balancing loss of its routers, with this weight. */
  router_aux_loss_coef: number('weight of the loss that keeps experts equally busy'),
};

const LOGS = {
  logging_strategy: string('"steps", "epoch" or "no"', { shown: '"steps"' }),
  logging_steps: number('updates between logs; below 1, a share of all', { shown: '10' }),
  report_to: texts('"tensorboard", "csv", "all" or "none"', { shown: 'none' }),
  disable_tqdm: boolean('print lines in place of a progress bar', { shown: 'false' }),
  /** Port of the page. true: the default port; false: the run is not recorded. */
  watch: declareOption(
    acceptAny<number | boolean>,
    'serve a local page of the run at this port; 0: a free one',
    {
      shown: 'record for ds watch',
      syntax: 'integer or switch',
    },
  ),
};

const EVALS = {
  eval_strategy: string('"steps", "epoch" or "no"', {
    shown: '"epoch" with --eval_data',
    also: ['evaluation_strategy'],
  }),
  eval_steps: number('updates between evaluations', { shown: '--logging_steps' }),
};

const SAVES = {
  save_strategy: string('"steps", "epoch", "best" or "no"', { shown: '"steps"' }),
  save_steps: number('updates between checkpoints', { shown: '500' }),
  load_best_model_at_end: boolean('end with the best checkpoint', { shown: 'false' }),
  metric_for_best_model: string('"loss"', { shown: '"loss"' }),
};

/** The method, and arguments of several methods. Each method checks their values. */
const METHOD = {
  method: string('"dpo", "kto", "orpo", "cpo", "reward", "gkd", "grpo" or "rloo"', {
    shown: '"sft"',
  }),
  beta: number('penalty for moving away from the reference, or weight of the preferences', {
    shown: '0.1',
  }),
  loss_type: texts('losses of the method, such as sigmoid or ipo', { shown: 'its first one' }),
  loss_weights: texts('weights of several losses of dpo', { shown: '1 each' }),
  /** An older argument: the weight of dpo's additional loss "sft". */
  rpo_alpha: number("weight of dpo's further loss sft", { shown: 'none' }),
  ref_model_name_or_path: string('reference model', {
    shown: 'the model without adapters, or the model as it was',
  }),
  precompute_ref_log_probs: boolean(
    'compute the log-probabilities of the reference before training',
    {
      shown: 'false',
    },
  ),
  precompute_ref_batch_size: integer('pairs of a batch in that pass', {
    min: 1,
    shown: '--per_device_train_batch_size',
  }),
  teacher_model_name_or_path: string('model that gkd learns from'),
  max_prompt_length: integer('tokens of a prompt; longer ones lose their beginning', {
    min: 1,
    shown: 'no limit',
  }),
  max_completion_length: integer('tokens of an answer; longer ones lose their end', {
    min: 1,
    shown: "no limit; grpo: 512, or half of the model's maximum",
  }),
};

/** Options for sampling completions. */
export const SAMPLING_OF_ROLLOUTS = {
  ...GENERATION_CONFIG,
  temperature: { ...GENERATION_CONFIG.temperature, help: 'divides the scores; above 0' },
};

/** Arguments for rewards of completions. */
const REWARDS = {
  reward_funcs: texts('rewards: built-in names, or exports such as ./file.mjs#name'),
  reward_weights: declareOption(acceptAny<number[]>, 'weights of the rewards', {
    shown: '1 each',
    syntax: 'numbers',
  }),
  reward_model_name_or_path: string('classifier with one label, as a further reward'),
};

const ADAPTERS = {
  use_peft: boolean('train LoRA adapters; the model stays as it is', {
    shown: 'false',
    also: ['lora', 'use_lora'],
  }),
};

/** Options of addLora(), by their names in PEFT. */
export const LORA = {
  r: integer('rank of the adapters; higher: more parameters to learn with', {
    shown: '8',
    also: ['lora_r', 'lora_rank'],
  }),
  lora_alpha: number('scale of the adapters: their output is multiplied by alpha / r', {
    shown: '8',
  }),
  lora_dropout: number('dropout on the input of the adapters, against overfitting', { shown: '0' }),
  target_modules: texts('names of layers with adapters, or all-linear', {
    shown: "PEFT's for the model",
    also: ['lora_target_modules'],
  }),
  target_parameters: texts('matrices of experts with adapters, such as experts.down_proj', {
    shown: 'none',
    also: ['lora_target_parameters'],
  }),
  exclude_modules: texts('names of layers without adapters'),
  modules_to_save: texts('modules to train and save whole', { also: ['lora_modules_to_save'] }),
  bias: string('biases to train: "none", "all" or "lora_only"', {
    shown: '"none"',
    also: ['lora_bias'],
  }),
  use_rslora: boolean('multiply by alpha / sqrt(r) in place of alpha / r; for high ranks', {
    shown: 'false',
  }),
  use_dora: boolean('train the length of each weight row (DoRA)', { shown: 'false' }),
  fan_in_fan_out: boolean('written to the files; no effect on training', { shown: 'false' }),
  init_lora_weights: declareTextOrSwitch('first values: true, false or "gaussian"', {
    shown: 'true',
  }),
  rank_pattern: declareRecord('other ranks by name, as JSON'),
  alpha_pattern: declareRecord('other alphas by name, as JSON'),
  layers_to_transform: declareOption(acceptAny<number[]>, 'numbers of the layers with adapters', {
    shown: 'all',
    syntax: 'integers',
  }),
  layers_pattern: texts('name of the list of layers'),
};

/** Options for 4-bit base weights. */
export const QLORA = {
  load_in_4bit: boolean('store the linear layers in 4 bits (QLoRA): a quarter of the memory', {
    shown: 'false',
    also: ['q_lora'],
  }),
  load_experts_in_4bit: boolean('store experts in 4 bits too', { shown: 'false' }),
  bnb_4bit_quant_type: string('"nf4"', { shown: '"nf4"' }),
  bnb_4bit_use_double_quant: boolean('quantize the scales too: a little less memory', {
    shown: 'false',
    also: ['use_bnb_nested_quant'],
  }),
};

/** All arguments of the command line and of a --config file. */
export interface TrainArguments
  extends Options<typeof FILES>,
    Arguments<typeof MODEL>,
    Options<typeof RUN>,
    Options<typeof ROWS>,
    Arguments<typeof LOADING>,
    Arguments<typeof OPTIMIZATION>,
    Options<typeof LEARNING>,
    Options<typeof LOGS>,
    Arguments<typeof LOGGING>,
    Arguments<typeof REPORTING>,
    Options<typeof EVALS>,
    Arguments<typeof EVALUATION>,
    Options<typeof SAVES>,
    Arguments<typeof SAVING>,
    Arguments<typeof BEST>,
    Arguments<typeof STOPPING>,
    Options<typeof METHOD>,
    Arguments<typeof CPO>,
    Arguments<typeof DPO>,
    Arguments<typeof GKD>,
    Arguments<typeof KTO>,
    Arguments<typeof ORPO>,
    Arguments<typeof REWARD>,
    Options<typeof REWARDS>,
    Arguments<typeof SAMPLING_OF_ROLLOUTS>,
    Arguments<typeof GRPO>,
    Arguments<typeof RLOO>,
    Options<typeof ADAPTERS>,
    Options<typeof LORA>,
    Options<typeof QLORA> {}

/** Returns the options of `declared` that have an argument, by the name of the argument. */
function selectFlags(declared: Declared): Declared {
  const named = Object.values(declared).filter(({ flag }) => flag !== undefined);
  return Object.fromEntries(named.map((option) => [option.flag, option]));
}

/** Options of grpo() and rloo(). `beta` is left out, because METHOD declares it for all methods. */
const { beta: _, ...rewardMethodOptions } = { ...RLOO, ...GRPO };

/** All arguments, by their heading in the help. */
export const GROUPS: Readonly<Record<string, Declared>> = {
  'Model, data and output': { ...FILES, ...selectFlags(MODEL), ...RUN, ...selectFlags(REPORTING) },
  'Rows and samples': { ...ROWS, ...selectFlags(LOADING) },
  Optimization: { ...selectFlags(OPTIMIZATION), ...LEARNING },
  'Logs, evaluations and checkpoints': {
    ...LOGS,
    ...selectFlags(LOGGING),
    ...EVALS,
    ...selectFlags(EVALUATION),
    ...SAVES,
    ...selectFlags(SAVING),
    ...selectFlags(BEST),
    ...selectFlags(STOPPING),
  },
  'Preferences and distillation': {
    ...selectFlags(DPO),
    ...selectFlags(KTO),
    ...selectFlags(ORPO),
    ...selectFlags(CPO),
    ...selectFlags(REWARD),
    ...selectFlags(GKD),
    ...METHOD,
  },
  Rewards: {
    ...REWARDS,
    ...selectFlags(SAMPLING_OF_ROLLOUTS),
    ...selectFlags(rewardMethodOptions),
  },
  'LoRA and QLoRA': { ...ADAPTERS, ...LORA, ...QLORA },
};

/** All arguments by name. */
export const ARGUMENTS: Declared = Object.assign({}, ...Object.values(GROUPS));

/**
 * Arguments by their other names: short names, and names in other versions, TRL, FastChat and
 * Qwen's scripts.
 */
export const ALIASES: Readonly<Record<string, string>> = Object.fromEntries(
  Object.entries(ARGUMENTS).flatMap(([name, { also = [] }]) => also.map((text) => [text, name])),
);

/** Notices for other names that differ in meaning from their argument. */
export const ALIAS_NOTES: Readonly<Record<string, string>> = {
  block_size:
    'is --max_length: each row is cut at it, for itself. --packing --packing_strategy bfd_split fills samples and splits long rows',
};

/**
 * Returns the values that `args` contains for the options of `declared`. Options without a value
 * are absent.
 */
export function readOptionsOf<D extends Declared>(
  declared: D,
  args: TrainArguments,
): Partial<Options<D>> {
  const given: Readonly<Record<string, unknown>> = { ...args };
  const named = Object.entries(declared).filter(([, { flag }]) => flag !== undefined);
  const values = named.map(([name, { flag = '' }]) => [name, given[flag]]);
  return definedOnly(Object.fromEntries(values) as Partial<Options<D>>);
}
