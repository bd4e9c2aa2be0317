// Argument sets of public recipes of alignment-handbook and TRL's examples, as names and values.
// `left` lists the arguments that `ds train` refuses by name, because they cannot act here.

export interface Recipe {
  method: string;
  arguments: Readonly<Record<string, unknown>>;
  left: readonly string[];
}

const COMMON = {
  ...{ bf16: true, gradient_checkpointing: true, log_level: 'info', logging_steps: 10 },
  ...{ gradient_checkpointing_kwargs: { use_reentrant: false }, seed: 42 },
};
const EVALUATED = { do_eval: true, eval_strategy: 'steps', eval_steps: 100 };
const OPTIMIZED = { lr_scheduler_type: 'cosine', warmup_ratio: 0.1, optim: 'adamw_torch' };
const SAVED = { save_strategy: 'steps', save_steps: 100, save_total_limit: 1 };
const ULTRAFEEDBACK = {
  dataset_mixer: { 'HuggingFaceH4/ultrafeedback_binarized': 1.0 },
  dataset_splits: ['train_prefs', 'test_prefs'],
  preprocessing_num_workers: 12,
};
const LEFT = ['dataset_mixer', 'dataset_splits', 'push_to_hub'];

const SIDES = { per_device_train_batch_size: 2, per_device_eval_batch_size: 4 };
const MIXTURE = {
  dataset_mixture: {
    datasets: [{ id: 'HuggingFaceH4/ultrafeedback_binarized', split: 'train_prefs', weight: 1.0 }],
    ...{ test_split_size: 2000, seed: 0 },
  },
  dataset_num_proc: 12,
};

export const RECIPES: Readonly<Record<string, Recipe>> = {
  'zephyr-7b-beta, dpo': {
    method: 'dpo',
    arguments: {
      ...{ ...COMMON, ...EVALUATED, ...OPTIMIZED, ...SAVED, ...ULTRAFEEDBACK, push_to_hub: true },
      ...{ torch_dtype: null, beta: 0.01, learning_rate: 5e-7, num_train_epochs: 1 },
      ...{ per_device_train_batch_size: 8, per_device_eval_batch_size: 8 },
      ...{ gradient_accumulation_steps: 2, max_length: 1024, max_prompt_length: 512 },
      hub_model_id: 'zephyr-7b-dpo-full',
    },
    left: LEFT,
  },
  'zephyr-7b-beta, dpo, qlora': {
    method: 'dpo',
    arguments: {
      ...{ ...COMMON, ...EVALUATED, ...OPTIMIZED, ...SAVED, ...ULTRAFEEDBACK, push_to_hub: true },
      ...{ torch_dtype: 'float16', use_peft: true, load_in_4bit: true, optim: 'paged_adamw_32bit' },
      ...{ lora_r: 16, lora_alpha: 16, lora_dropout: 0.05, beta: 0.01, learning_rate: 5e-6 },
      lora_target_modules: ['q_proj', 'k_proj', 'v_proj', 'o_proj', 'gate_proj', 'up_proj'],
      ...{ per_device_train_batch_size: 4, per_device_eval_batch_size: 8, num_train_epochs: 1 },
      ...{ gradient_accumulation_steps: 1, max_length: 1024, max_prompt_length: 512 },
    },
    left: LEFT,
  },
  'zephyr-2b-gemma, dpo': {
    method: 'dpo',
    arguments: {
      ...{ ...COMMON, ...EVALUATED, ...OPTIMIZED, ...SIDES, push_to_hub: true, beta: 0.05 },
      ...{ dataset_mixer: { 'argilla/dpo-mix-7k': 1.0 }, dataset_splits: ['train', 'test'] },
      ...{ torch_dtype: 'bfloat16', learning_rate: 5e-7, num_train_epochs: 2, save_strategy: 'no' },
      ...{ gradient_accumulation_steps: 8, max_length: 1024, max_prompt_length: 512 },
    },
    left: LEFT,
  },
  'smollm2, dpo': {
    method: 'dpo',
    arguments: {
      ...{ ...COMMON, ...EVALUATED, ...OPTIMIZED, ...SIDES, ...MIXTURE, push_to_hub: true },
      ...{ beta: 0.5, learning_rate: 1e-6, num_train_epochs: 3, save_strategy: 'no' },
      ...{ gradient_accumulation_steps: 8, max_length: 1024, max_prompt_length: 512 },
      ...{ torch_dtype: 'bfloat16', hub_private_repo: true },
    },
    left: ['dataset_mixture', 'push_to_hub'],
  },
  'smollm3, dpo with apo_zero': {
    method: 'dpo',
    arguments: {
      ...{ ...COMMON, ...MIXTURE, push_to_hub: true, hub_strategy: 'every_save' },
      ...{ attn_implementation: 'flash_attention_2', trust_remote_code: true, do_eval: false },
      ...{ eval_strategy: 'no', gradient_accumulation_steps: 2, learning_rate: 1e-6, beta: 0.05 },
      ...{ logging_strategy: 'steps', lr_scheduler_type: 'cosine_with_min_lr', warmup_ratio: 0.1 },
      ...{ lr_scheduler_kwargs: { min_lr_rate: 0.1 }, max_grad_norm: 0.2, loss_type: 'apo_zero' },
      ...{ num_train_epochs: 1, overwrite_output_dir: true, per_device_train_batch_size: 1 },
      ...{ padding_free: true, save_strategy: 'steps', save_steps: 0.5, save_total_limit: 1 },
      ...{ use_liger_kernel: true, run_name: 'SmolLM3-DPO', max_length: 24576 },
    },
    left: ['dataset_mixture', 'push_to_hub', 'trust_remote_code'],
  },
  'starchat2-15b, dpo': {
    method: 'dpo',
    arguments: {
      ...{ ...COMMON, ...EVALUATED, ...OPTIMIZED, ...SIDES, ...MIXTURE, push_to_hub: true },
      ...{ beta: 0.05, learning_rate: 5e-7, num_train_epochs: 2, save_strategy: 'no' },
      ...{ gradient_accumulation_steps: 8, max_length: 1024, max_prompt_length: 512 },
    },
    left: ['dataset_mixture', 'push_to_hub'],
  },
  'preference scan of zephyr, ipo': {
    method: 'dpo',
    arguments: {
      ...{ ...COMMON, ...EVALUATED, ...OPTIMIZED, ...SAVED, ...ULTRAFEEDBACK, beta: 0.01 },
      ...{ loss_type: 'ipo', hub_model_revision: 'ipo-beta-0.01', push_to_hub_revision: true },
      ...{ learning_rate: 5e-7, max_prompt_length: 512, num_train_epochs: 1 },
      ...{ gradient_accumulation_steps: 2, per_device_train_batch_size: 8 },
    },
    left: ['dataset_mixer', 'dataset_splits', 'push_to_hub_revision'],
  },
  'zephyr-141b-A35b, orpo': {
    method: 'orpo',
    arguments: {
      ...{ ...COMMON, push_to_hub: true, beta: 0.05, learning_rate: 5e-6, num_train_epochs: 3 },
      ...{ chat_template: '{% for message in messages %}{% endfor %}', model_revision: 'main' },
      ...{ dataset_name: 'argilla/distilabel-capybara-dpo-7k-binarized', dataset_num_proc: 8 },
      ...{ gradient_accumulation_steps: 1, lr_scheduler_type: 'inverse_sqrt', warmup_steps: 100 },
      ...{ max_length: 2048, max_prompt_length: 1792, optim: 'adamw_bnb_8bit' },
      ...{ per_device_train_batch_size: 1, save_strategy: 'no', dataset_train_split: 'train' },
    },
    left: ['chat_template', 'dataset_name', 'dataset_train_split', 'push_to_hub'],
  },
  "TRL's example of kto": {
    method: 'kto',
    arguments: {
      ...{ dataset_name: 'trl-lib/kto-mix-14k', per_device_train_batch_size: 16 },
      ...{ num_train_epochs: 1, learning_rate: 5e-6, lr_scheduler_type: 'cosine' },
      ...{ gradient_accumulation_steps: 1, eval_steps: 500, warmup_steps: 0.1, bf16: true },
      ...{ logging_first_step: true, use_peft: true, load_in_4bit: true, lora_r: 16 },
      ...{ lora_target_modules: 'all-linear', lora_alpha: 16 },
    },
    left: ['dataset_name'],
  },
  "TRL's example of cpo, as simpo": {
    method: 'cpo',
    arguments: {
      ...{ dataset_name: 'trl-lib/ultrafeedback_binarized', per_device_train_batch_size: 4 },
      ...{ max_steps: 1000, learning_rate: 8e-6, gradient_accumulation_steps: 1 },
      ...{ eval_steps: 500, warmup_steps: 150, logging_first_step: true, loss_type: 'simpo' },
      ...{ cpo_alpha: 0, simpo_gamma: 0.5, no_remove_unused_columns: true },
    },
    left: ['dataset_name'],
  },
  "TRL's example of reward models": {
    method: 'reward',
    arguments: {
      ...{ dataset_name: 'trl-lib/ultrafeedback_binarized', per_device_train_batch_size: 8 },
      ...{ num_train_epochs: 1, gradient_checkpointing: true, learning_rate: 1e-5 },
      ...{ eval_strategy: 'steps', eval_steps: 50, max_length: 2048 },
      ...{ use_peft: true, lora_task_type: 'SEQ_CLS', lora_r: 32, lora_alpha: 16 },
    },
    left: ['dataset_name'],
  },
  "TRL's example of gkd": {
    method: 'gkd',
    arguments: {
      ...{ dataset_name: 'trl-lib/chatbot_arena_completions', learning_rate: 2e-5 },
      ...{ per_device_train_batch_size: 4, gradient_accumulation_steps: 8, num_train_epochs: 1 },
      ...{ lmbda: 0.5, beta: 0.5, seq_kd: false },
    },
    left: ['dataset_name'],
  },
};
