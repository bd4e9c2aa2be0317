// Descriptions of the arguments of `ds train`, by group.
import type {
  DataArguments,
  FileArguments,
  LoraArguments,
  OptimizationArguments,
  ReportArguments,
  TrainArguments,
} from './arguments.js';

/** Description of an argument, and its default if it has one. */
export type ArgumentHelp = string | readonly [text: string, fallback: string];

const FILES: Readonly<Record<keyof FileArguments, ArgumentHelp>> = {
  model_name_or_path: 'folder of the model, or its name such as Qwen/Qwen3-0.6B',
  model_revision: ['branch, tag or commit of a model of the hub', '"main"'],
  config_name: 'config.json of a new model with random weights, in place of --model',
  tokenizer_name: ['folder or name of the tokenizer', "the model's"],
  train_file: 'rows to train on: files, folders and patterns',
  validation_file: 'rows to evaluate on',
  output_dir: 'folder of the trained weights, checkpoints and reports',
  deepspeed: 'a ds_config.json, or its JSON',
  resume_from_checkpoint: 'continue from the newest checkpoint, or from this folder',
  ignore_data_skip: ['resume at the first row of the data', 'false'],
  run_name: ['name of the run in reports', '"trainer"'],
  device: ['"cpu", "cuda" or "auto"', '"auto"'],
  use_cpu: ['same as --device cpu', 'false'],
  sample: ['prompt to continue after training; --no_sample turns it off', 'the first row with one'],
  sample_tokens: ['tokens of that continuation', '48'],
};

const DATA: Readonly<Record<keyof DataArguments, ArgumentHelp>> = {
  max_length: ['tokens of a sample at most', "1024, or the model's maximum"],
  packing: ['fill each sample with several rows', 'false'],
  eval_packing: ['the same for evaluation', '--packing'],
  packing_strategy: ['"bfd" cuts long rows, "bfd_split" keeps their parts', '"bfd"'],
  completion_only_loss: ['learn only the completions', 'true for prompt-completion rows'],
  assistant_only_loss: ['learn only the answers of the assistant', 'false'],
  dataset_text_field: ['key of the text in a row', '"text"'],
  dataset_num_proc: 'threads that read and tokenize',
  dataset_cache_dir: 'folder that keeps tokens for the next run',
  streaming: ['read rows while training, in place of all rows first', 'false'],
  train_sampling_strategy: ['"random", "sequential" or "group_by_length"', '"random"'],
  group_by_length: ['same as --train_sampling_strategy group_by_length', 'false'],
  dataloader_drop_last: ['drop a last micro-batch that is not full', 'false'],
  dataloader_num_workers: ['threads that load samples', '0'],
  data_seed: ['order of the samples', '--seed'],
};

const OPTIMIZATION: Readonly<Record<keyof OptimizationArguments, ArgumentHelp>> = {
  num_train_epochs: ['passes over the data', '3'],
  max_steps: 'number of updates, in place of epochs',
  per_device_train_batch_size: ['samples of a micro-batch on one rank', '8'],
  per_device_eval_batch_size: ['samples of an evaluation batch on one rank', 'as training'],
  gradient_accumulation_steps: ['micro-batches of an update', '1'],
  learning_rate: ['learning rate', '5e-5'],
  lr_scheduler_type: ['schedule of the learning rate', '"linear"'],
  lr_scheduler_kwargs: 'numbers of the schedule, such as {"min_lr": 1e-6}',
  warmup_steps: ['updates of warm-up; below 1, a share of all', '0'],
  warmup_ratio: ['share of all updates for warm-up', '0'],
  weight_decay: ['weight decay of matrices', '0'],
  adam_beta1: ['beta1 of AdamW', '0.9'],
  adam_beta2: ['beta2 of AdamW', '0.999'],
  adam_epsilon: ['epsilon of AdamW', '1e-8'],
  max_grad_norm: ['clip gradients to this norm; 0: no clipping', '1'],
  label_smoothing_factor: ['share of each target spread over all tokens', '0'],
  neftune_noise_alpha: 'noise on token embeddings (NEFTune)',
  optim: ['"adamw_torch" or "adamw_8bit"; others in the configuration', '"adamw_torch"'],
  fp16: ['train in fp16', 'false'],
  bf16: ['train in bf16', 'false'],
  fp16_full_eval: ['evaluate in fp16, as training does', 'false'],
  bf16_full_eval: ['evaluate in bf16, as training does', 'false'],
  gradient_checkpointing: ['recompute activations during backward', 'false'],
  router_aux_loss_coef: 'weight of the load-balancing loss of experts',
  seed: ['dropout and order of the data', '42'],
};

const REPORTS: Readonly<Record<keyof ReportArguments, ArgumentHelp>> = {
  logging_strategy: ['"steps", "epoch" or "no"', '"steps"'],
  logging_steps: ['updates between logs; below 1, a share of all', '10'],
  logging_first_step: ['log the first update too', 'false'],
  logging_nan_inf_filter: ['leave non-finite losses out of means', 'false'],
  report_to: ['"tensorboard", "csv", "all" or "none"', 'none'],
  disable_tqdm: ['lines in place of a progress bar', 'false'],
  watch: ['serve a local page of the run at this port; 0: a free one', 'record for ds watch'],
  eval_strategy: ['"steps", "epoch" or "no"', '"epoch" with --eval_data'],
  eval_steps: ['updates between evaluations', '--logging_steps'],
  eval_delay: ['updates (or epochs) before the first evaluation', '0'],
  eval_on_start: ['evaluate before the first update', 'false'],
  save_strategy: ['"steps", "epoch", "best" or "no"', '"steps"'],
  save_steps: ['updates between checkpoints', '500'],
  save_total_limit: ['checkpoints to keep', 'all'],
  save_only_model: ['checkpoints of weights only; no run resumes from them', 'false'],
  load_best_model_at_end: ['end with the best checkpoint', 'false'],
  metric_for_best_model: ['"loss"', '"loss"'],
  greater_is_better: ['larger values of the metric are better', 'false'],
  early_stopping_patience: 'end after so many evaluations without improvement',
  early_stopping_threshold: ['least improvement that counts', '0'],
};

const LORA: Readonly<Record<keyof LoraArguments, ArgumentHelp>> = {
  use_peft: ['train LoRA adapters; the model stays as it is', 'false'],
  r: ['rank', '8'],
  lora_alpha: ['alpha of the factor alpha / r', '8'],
  lora_dropout: ['dropout on the input of the adapters', '0'],
  target_modules: ['layers with adapters, or all-linear', "PEFT's for the model"],
  exclude_modules: 'layers without adapters',
  modules_to_save: 'modules to train and save whole',
  bias: ['biases to train: "none", "all" or "lora_only"', '"none"'],
  use_rslora: ['scale by alpha / sqrt(r)', 'false'],
  use_dora: ['train the length of each weight row (DoRA)', 'false'],
  fan_in_fan_out: 'written to the files; no effect on training',
  init_lora_weights: ['first values: true, false or "gaussian"', 'true'],
  rank_pattern: 'other ranks by name, as JSON',
  alpha_pattern: 'other alphas by name, as JSON',
  layers_to_transform: ['numbers of the layers with adapters', 'all'],
  layers_pattern: 'name of the list of layers',
  load_in_4bit: ['store the linear layers in 4 bits (QLoRA)', 'false'],
  bnb_4bit_quant_type: ['"nf4"', '"nf4"'],
  bnb_4bit_use_double_quant: ['quantize the scales too', 'false'],
};

/** All arguments, by the headings of the help. */
export const HELP_GROUPS: readonly (readonly [
  heading: string,
  help: Partial<Readonly<Record<keyof TrainArguments, ArgumentHelp>>>,
])[] = [
  ['Model, data and output', FILES],
  ['Rows and samples', DATA],
  ['Optimization', OPTIMIZATION],
  ['Logs, evaluations and checkpoints', REPORTS],
  ['LoRA and QLoRA', LORA],
];
