// Arguments of transformers and TRL that have no effect here or are not supported yet.

/** Why an argument is accepted although it changes nothing. */
export const NO_EFFECT: Readonly<Record<string, string>> = {
  ...all('this is a training command', ['do_train', 'do_eval']),
  ...all('folders of earlier runs are never emptied', ['overwrite_output_dir']),
  ...all('tokens are kept by the content of their files', ['overwrite_cache']),
  ...all('kernels are fused always', [
    ...['use_liger_kernel', 'liger_kernel_config', 'attn_implementation', 'tf32'],
    ...['torch_compile', 'torch_compile_backend', 'torch_compile_mode', 'padding_free'],
    ...['pad_to_multiple_of', 'use_cache', 'gradient_checkpointing_kwargs', 'flash_attn'],
    ...['gradient_checkpointing_use_reentrant', 'use_reentrant'],
  ]),
  ...all('the configuration sets the parallelism', [
    'ddp_backend',
    'ddp_bucket_cap_mb',
    'ddp_broadcast_buffers',
    'ddp_timeout',
    'ddp_find_unused_parameters',
    'local_rank',
    'fp16_backend',
    'half_precision_backend',
    'ignore_bias_buffers',
    'mp_parameters',
    'ray_scope',
    'ddp_static_graph',
  ]),
  ...all('a checkpoint is one folder that all ranks write to', ['save_on_each_node']),
  ...all('weights are safetensors always', ['save_safetensors']),
  ...all('SIGTERM saves and ends always', ['enable_jit_checkpoint']),
  ...all('loaders always pin memory and prefetch', [
    'dataloader_pin_memory',
    'dataloader_prefetch_factor',
    'dataloader_persistent_workers',
    'dataloader_multiprocessing_context',
    'dataloader_in_order',
  ]),
  ...all('rows are read by their keys', [
    'remove_unused_columns',
    'label_names',
    'dataset_kwargs',
    'dataset_batch_size',
    'lazy_preprocess',
  ]),
  ...all('lengths are token counts', ['length_column_name']),
  ...all('each epoch has an order of its own', ['shuffle_dataset']),
  ...all('metrics are sums over batches and ranks', [
    'prediction_loss_only',
    'eval_accumulation_steps',
    'eval_do_concat_batches',
    'eval_use_gather_object',
    'include_for_metrics',
    'batch_eval_metrics',
    'include_inputs_for_metrics',
    'use_legacy_prediction_loop',
  ]),
  ...all('tokens are counted always, without padding', [
    'include_num_input_tokens_seen',
    'include_tokens_per_second',
  ]),
  ...all('only rank 0 logs', ['log_level', 'log_level_replica', 'log_on_each_node']),
  ...all('reports are in the folder runs of the output', ['logging_dir']),
  ...all('that service gets nothing', [
    'project',
    'trackio_space_id',
    'trackio_bucket_id',
    'trackio_static_space_id',
  ]),
  ...all('nothing is pushed', [
    'hub_model_id',
    'hub_strategy',
    'hub_token',
    'hub_private_repo',
    'hub_always_push',
    'hub_revision',
    'hub_model_revision',
    'push_to_hub_model_id',
    'push_to_hub_organization',
    'push_to_hub_token',
  ]),
  ...all('memory is freed when it is no longer used', ['torch_empty_cache_steps']),
  ...all('memory is not measured at each step', ['skip_memory_metrics']),
  ...all("listeners are the program's own", ['restore_callback_states_from_checkpoint']),
  ...all('tokenizers are always fast', ['use_fast_tokenizer']),
  ...all('HF_HUB_CACHE and HF_TOKEN set cache and token', ['cache_dir', 'token', 'use_auth_token']),
  ...all('weights keep the dtype of the configuration', [
    'dtype',
    'torch_dtype',
    'low_cpu_mem_usage',
    'bnb_4bit_compute_dtype',
  ]),
  ...all('the task of the adapters follows from --task', ['lora_task_type', 'task_type']),
  ...all('4-bit weights are kept in bytes', ['bnb_4bit_quant_storage']),
  ...all('there are no other kernels to choose', ['full_determinism']),
  ...all('padding does not count', ['padding_value', 'label_pad_token_id']),
  ...all('the architecture of the model is known', ['is_encoder_decoder']),
  ...all('adapters have no names here', ['model_adapter_name', 'ref_adapter_name']),
  ...all('--ref_model_name_or_path selects a second model', ['force_use_ref_model']),
};

/** An unsupported argument; its `off` values are accepted. */
interface Refusal {
  /** Reason, and the replacement. */
  reason: string;
  /** Values in lower case that disable the argument. */
  off: readonly string[];
}

/** Values that disable an argument. */
const OFF = ['false', 'no', 'off', '0', 'none', 'null', ''];

/** Unsupported arguments that would change the training, by name. */
export const REFUSED: Readonly<Record<string, Refusal>> = {
  ...refusals('save the data set to a file and pass --data FILE.jsonl', [
    'dataset_name',
    'dataset_config',
    'dataset_config_name',
    'dataset_train_split',
    'dataset_test_split',
    'datasets',
    'validation_split_percentage',
    'test_split_size',
    'dataset_streaming',
    'dataset_mixture',
    'dataset_mixer',
    'dataset_splits',
  ]),
  ...refusals('pass a file with fewer rows', ['max_train_samples', 'max_eval_samples']),
  ...refusals('uploads are not supported: run `hf upload` on the output folder', [
    'push_to_hub',
    'push_to_hub_revision',
  ]),
  ...refusals('--method cpo needs no reference', ['reference_free']),
  ...refusals('print samples with --sample after training', ['generate_during_eval']),
  ...refusals('no Python of a model is run', [
    'ref_model_init_kwargs',
    'teacher_model_init_kwargs',
  ]),
  ...refusals('set ZeRO stage 3 in the DeepSpeed configuration', [
    'fsdp',
    'fsdp_config',
    'fsdp_min_num_params',
    'fsdp_transformer_layer_cls_to_wrap',
  ]),
  ...refusals('pass a config.json with --config_name', ['config_overrides', 'model_type']),
  ...refusals('set it in the DeepSpeed configuration, and the ranks by `ds --num_gpus`', [
    'accelerator_config',
    'parallelism_config',
    'tp_size',
    'split_batches',
    'dispatch_batches',
    'sharded_ddp',
  ]),
  ...refusals('pass a smaller --per_device_train_batch_size', ['auto_find_batch_size']),
  ...refusals('write "optimizer" in the DeepSpeed configuration', [
    'adafactor',
    'optim_args',
    'optim_target_modules',
  ]),
  ...refusals('no Python of a model is run', ['trust_remote_code', 'model_init_kwargs']),
  ...refusals('load the saved folder in a program to predict', [
    'do_predict',
    'predict_with_generate',
  ]),
  ...refusals('set "offload_param" or --gradient_checkpointing', ['activation_offloading']),
  ...refusals('8-bit weights are not supported: use --load_in_4bit', ['load_in_8bit']),
  ...refusals("write the template into the tokenizer's chat_template.jinja", [
    'chat_template_path',
    'chat_template',
  ]),
  ...refusals("write it into the tokenizer's tokenizer_config.json", ['eos_token', 'pad_token']),
  ...refusals('hidden states of earlier batches are not supported', ['past_index']),
  ...refusals('gradients are always checked for infinity and NaN', ['debug']),
  ...refusals('XLA is not supported', ['tpu_num_cores', 'tpu_metrics_debug', 'use_mps_device']),
  ...refusals('IPEX and TorchScript are not supported', [
    'use_ipex',
    'jit_mode_eval',
    'torchdynamo',
  ]),
  ...refusals('apex is not supported: use --bf16 or --fp16', ['fp16_opt_level'], ['o1']),
  average_tokens_across_devices: {
    reason: "losses are averaged over all ranks' tokens",
    off: ['true', 'yes', '1'],
  },
  ...refusals('long rows always keep their start', ['truncation_mode'], ['keep_start']),
  ...refusals('set environment variables in the shell', ['env']),
};

function all(reason: string, names: readonly string[]): Record<string, string> {
  return Object.fromEntries(names.map((name) => [name, reason]));
}

function refusals(
  reason: string,
  names: readonly string[],
  off: readonly string[] = [],
): Record<string, Refusal> {
  return Object.fromEntries(names.map((name) => [name, { reason, off: [...OFF, ...off] }]));
}
