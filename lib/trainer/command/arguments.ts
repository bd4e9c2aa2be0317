// The arguments of `ds train`, by the names that transformers, TRL and PEFT gave them.

/** Types of an argument's values. */
export type Kind =
  | 'text'
  | 'integer'
  | 'number'
  | 'switch' // without a value: true; values: true, false, yes, no, 1, 0
  | 'texts' // all following words
  | 'integers'
  | 'record' // JSON
  | 'text or record' // a path, or JSON
  | 'text or switch'
  | 'integer or switch';

/** Model, data and output. */
export interface FileArguments {
  /** Folder of the model (config.json, weights, tokenizer), or its name in the hub. */
  model_name_or_path?: string;
  /** Branch, tag or commit of a model of the hub. A folder ignores it, as in transformers. */
  model_revision?: string;
  /** Folder or name of the tokenizer. Default: the model's. */
  tokenizer_name?: string;
  /** Folder or file of a configuration: a model with new weights. */
  config_name?: string;
  /** Rows to learn from: files, folders and patterns. */
  train_file?: string[];
  /** Rows to be judged by. */
  validation_file?: string[];
  output_dir?: string;
  deepspeed?: string | object;
  resume_from_checkpoint?: string | boolean;
  /** Resume with the data from their beginning. */
  ignore_data_skip?: boolean;
  run_name?: string;
  /** "cpu", "cuda" or "auto"; the launcher chooses the GPUs. */
  device?: string;
  use_cpu?: boolean;
  /** Prompt of the sample after training; --no_sample prints no sample. */
  sample?: string | boolean;
  /** Tokens of the sample. */
  sample_tokens?: number;
}

/** How rows become samples. */
export interface DataArguments {
  max_length?: number;
  packing?: boolean;
  eval_packing?: boolean;
  packing_strategy?: string;
  completion_only_loss?: boolean;
  assistant_only_loss?: boolean;
  dataset_text_field?: string;
  dataset_num_proc?: number;
  /** Folder of the token cache. */
  dataset_cache_dir?: string;
  streaming?: boolean;
  train_sampling_strategy?: string;
  group_by_length?: boolean;
  dataloader_drop_last?: boolean;
  dataloader_num_workers?: number;
  data_seed?: number;
}

/** Length, learning rate and precision of the run. */
export interface OptimizationArguments {
  num_train_epochs?: number;
  max_steps?: number;
  per_device_train_batch_size?: number;
  per_device_eval_batch_size?: number;
  gradient_accumulation_steps?: number;
  learning_rate?: number;
  lr_scheduler_type?: string;
  lr_scheduler_kwargs?: object;
  warmup_steps?: number;
  warmup_ratio?: number;
  weight_decay?: number;
  adam_beta1?: number;
  adam_beta2?: number;
  adam_epsilon?: number;
  max_grad_norm?: number;
  label_smoothing_factor?: number;
  neftune_noise_alpha?: number;
  optim?: string;
  fp16?: boolean;
  bf16?: boolean;
  fp16_full_eval?: boolean;
  bf16_full_eval?: boolean;
  gradient_checkpointing?: boolean;
  /** Of a model with experts: switches the loss of its routers on, by this weight. */
  router_aux_loss_coef?: number;
  seed?: number;
}

/** When something is logged, judged and saved. */
export interface ReportArguments {
  logging_strategy?: string;
  logging_steps?: number;
  logging_first_step?: boolean;
  logging_nan_inf_filter?: boolean;
  report_to?: string[];
  disable_tqdm?: boolean;
  /** Port of the page; true: the usual one; false: no recording. */
  watch?: number | boolean;
  eval_strategy?: string;
  eval_steps?: number;
  eval_delay?: number;
  eval_on_start?: boolean;
  save_strategy?: string;
  save_steps?: number;
  save_total_limit?: number;
  save_only_model?: boolean;
  load_best_model_at_end?: boolean;
  metric_for_best_model?: string;
  greater_is_better?: boolean;
  early_stopping_patience?: number;
  early_stopping_threshold?: number;
}

/** LoRA, by PEFT's names. */
export interface LoraArguments {
  use_peft?: boolean;
  r?: number;
  lora_alpha?: number;
  lora_dropout?: number;
  target_modules?: string[];
  exclude_modules?: string[];
  modules_to_save?: string[];
  bias?: string;
  use_rslora?: boolean;
  use_dora?: boolean;
  fan_in_fan_out?: boolean;
  init_lora_weights?: string | boolean;
  rank_pattern?: object;
  alpha_pattern?: object;
  layers_to_transform?: number[];
  layers_pattern?: string[];
  load_in_4bit?: boolean;
  bnb_4bit_quant_type?: string;
  bnb_4bit_use_double_quant?: boolean;
}

/** All arguments of a command line and its --config file. */
export interface TrainArguments
  extends FileArguments,
    DataArguments,
    OptimizationArguments,
    ReportArguments,
    LoraArguments {}

/** How each argument is read; the compiler keeps the list complete. */
export const KINDS: Readonly<Record<keyof TrainArguments, Kind>> = {
  ...{ model_name_or_path: 'text', tokenizer_name: 'text', config_name: 'text' },
  model_revision: 'text',
  ...{ train_file: 'texts', validation_file: 'texts', output_dir: 'text' },
  ...{ deepspeed: 'text or record', resume_from_checkpoint: 'text or switch', run_name: 'text' },
  ...{ ignore_data_skip: 'switch' },
  ...{ device: 'text', use_cpu: 'switch', sample: 'text or switch', sample_tokens: 'integer' },

  ...{ max_length: 'integer', packing: 'switch', eval_packing: 'switch' },
  ...{ packing_strategy: 'text', completion_only_loss: 'switch', assistant_only_loss: 'switch' },
  ...{ dataset_text_field: 'text', dataset_num_proc: 'integer', dataset_cache_dir: 'text' },
  ...{ streaming: 'switch', train_sampling_strategy: 'text', group_by_length: 'switch' },
  ...{ dataloader_drop_last: 'switch', dataloader_num_workers: 'integer', data_seed: 'integer' },

  ...{ num_train_epochs: 'number', max_steps: 'integer', per_device_train_batch_size: 'integer' },
  ...{ per_device_eval_batch_size: 'integer', gradient_accumulation_steps: 'integer' },
  ...{ learning_rate: 'number', lr_scheduler_type: 'text', lr_scheduler_kwargs: 'record' },
  ...{ warmup_steps: 'number', warmup_ratio: 'number', weight_decay: 'number' },
  ...{ adam_beta1: 'number', adam_beta2: 'number', adam_epsilon: 'number' },
  ...{ max_grad_norm: 'number', label_smoothing_factor: 'number', optim: 'text' },
  neftune_noise_alpha: 'number',
  ...{ fp16: 'switch', bf16: 'switch', fp16_full_eval: 'switch', bf16_full_eval: 'switch' },
  ...{ gradient_checkpointing: 'switch', router_aux_loss_coef: 'number', seed: 'integer' },

  ...{ logging_strategy: 'text', logging_steps: 'number', logging_first_step: 'switch' },
  ...{ logging_nan_inf_filter: 'switch', report_to: 'texts', disable_tqdm: 'switch' },
  watch: 'integer or switch',
  ...{ eval_strategy: 'text', eval_steps: 'number', eval_delay: 'number', eval_on_start: 'switch' },
  ...{ save_strategy: 'text', save_steps: 'number', save_total_limit: 'integer' },
  ...{ save_only_model: 'switch', load_best_model_at_end: 'switch' },
  ...{ metric_for_best_model: 'text', greater_is_better: 'switch' },
  ...{ early_stopping_patience: 'integer', early_stopping_threshold: 'number' },

  ...{ use_peft: 'switch', r: 'integer', lora_alpha: 'number', lora_dropout: 'number' },
  ...{ target_modules: 'texts', exclude_modules: 'texts', modules_to_save: 'texts' },
  ...{ bias: 'text', use_rslora: 'switch', use_dora: 'switch' },
  fan_in_fan_out: 'switch',
  ...{ init_lora_weights: 'text or switch', rank_pattern: 'record', alpha_pattern: 'record' },
  ...{ layers_to_transform: 'integers', layers_pattern: 'texts' },
  ...{ load_in_4bit: 'switch', bnb_4bit_quant_type: 'text', bnb_4bit_use_double_quant: 'switch' },
};

/** Short names, names of other versions, and names of TRL, FastChat and Qwen's scripts. */
export const ALIASES: Readonly<Record<string, keyof TrainArguments>> = {
  ...{ model: 'model_name_or_path', tokenizer: 'tokenizer_name', output: 'output_dir' },
  ...{ data: 'train_file', train_files: 'train_file', eval_data: 'validation_file' },
  ...{ validation_files: 'validation_file', no_cuda: 'use_cpu' },
  ...{ max_seq_length: 'max_length', block_size: 'max_length', cutoff_len: 'max_length' },
  ...{ preprocessing_num_workers: 'dataset_num_proc', evaluation_strategy: 'eval_strategy' },
  ...{ lora: 'use_peft', lora_r: 'r', lora_target_modules: 'target_modules' },
  ...{ lora_modules_to_save: 'modules_to_save', lora_bias: 'bias' },
  ...{ use_bnb_nested_quant: 'bnb_4bit_use_double_quant' },
  ...{ data_path: 'train_file', eval_data_path: 'validation_file', model_max_length: 'max_length' },
  ...{ use_lora: 'use_peft', q_lora: 'load_in_4bit', lora_rank: 'r' },
  ...{ lr: 'learning_rate', epochs: 'num_train_epochs', num_epochs: 'num_train_epochs' },
  ...{ batch_size: 'per_device_train_batch_size', eval_batch_size: 'per_device_eval_batch_size' },
  per_gpu_train_batch_size: 'per_device_train_batch_size',
  per_gpu_eval_batch_size: 'per_device_eval_batch_size',
};

/** Former meanings of aliases that differ from the argument. */
export const MEANT: Readonly<Record<string, string>> = {
  block_size:
    'is --max_length: each row is cut at it, for itself. --packing --packing_strategy bfd_split fills samples and splits long rows',
};
