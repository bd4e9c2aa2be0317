// Lists arguments of transformers and TRL that have no effect in `ds train`, or that it refuses.

/** Accepted arguments without effect, by name, with the reason. */
export const NO_EFFECT: Readonly<Record<string, string>> = {
  ...withReason('this is a training command', ['do_train', 'do_eval']),
  ...withReason('folders of earlier runs are never emptied', ['overwrite_output_dir']),
  ...withReason('tokens are kept by the content of their files', ['overwrite_cache']),
  ...withReason('kernels are fused always', [
    'use_liger_kernel',
    'liger_kernel_config',
    'attn_implementation',
    'tf32',
    'torch_compile',
    'torch_compile_backend',
    'torch_compile_mode',
    'padding_free',
    'pad_to_multiple_of',
    'use_cache',
    'gradient_checkpointing_kwargs',
    'flash_attn',
    'gradient_checkpointing_use_reentrant',
    'use_reentrant',
  ]),
  ...withReason('the configuration sets the parallelism', [
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
  ...withReason('a checkpoint is one folder that all ranks write to', ['save_on_each_node']),
  ...withReason('weights are safetensors always', ['save_safetensors']),
  ...withReason('SIGTERM saves and ends always', ['enable_jit_checkpoint']),
  ...withReason('loaders always pin memory and prefetch', [
    'dataloader_pin_memory',
    'dataloader_prefetch_factor',
    'dataloader_persistent_workers',
    'dataloader_multiprocessing_context',
    'dataloader_in_order',
  ]),
  ...withReason('rows are read by their keys', [
    'remove_unused_columns',
    'label_names',
    'dataset_kwargs',
    'dataset_batch_size',
    'lazy_preprocess',
  ]),
  ...withReason('lengths are token counts', ['length_column_name']),
  ...withReason('each epoch has an order of its own', ['shuffle_dataset']),
  ...withReason('metrics are sums over batches and ranks', [
    'prediction_loss_only',
    'eval_accumulation_steps',
    'eval_do_concat_batches',
    'eval_use_gather_object',
    'include_for_metrics',
    'batch_eval_metrics',
    'include_inputs_for_metrics',
    'use_legacy_prediction_loop',
  ]),
  ...withReason('tokens are counted always, without padding', [
    'include_num_input_tokens_seen',
    'include_tokens_per_second',
  ]),
  ...withReason('only rank 0 logs', ['log_level', 'log_level_replica', 'log_on_each_node']),
  ...withReason('reports are in the folder runs of the output', ['logging_dir']),
  ...withReason('that service gets nothing', [
    'project',
    'trackio_space_id',
    'trackio_bucket_id',
    'trackio_static_space_id',
  ]),
  ...withReason('nothing is pushed', [
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
  ...withReason('memory is freed when it is no longer used', ['torch_empty_cache_steps']),
  ...withReason('memory is not measured at each step', ['skip_memory_metrics']),
  ...withReason("listeners are the program's own", ['restore_callback_states_from_checkpoint']),
  ...withReason('tokenizers are always fast', ['use_fast_tokenizer']),
  ...withReason('HF_HUB_CACHE and HF_TOKEN set cache and token', [
    'cache_dir',
    'token',
    'use_auth_token',
  ]),
  ...withReason('weights keep the dtype of the configuration', [
    'dtype',
    'torch_dtype',
    'low_cpu_mem_usage',
    'bnb_4bit_compute_dtype',
  ]),
  ...withReason('the task of the adapters follows from --task', ['lora_task_type', 'task_type']),
  ...withReason('4-bit weights are kept in bytes', ['bnb_4bit_quant_storage']),
  ...withReason('there are no other kernels to choose', ['full_determinism']),
  ...withReason('padding does not count', ['padding_value', 'label_pad_token_id']),
  ...withReason('the architecture of the model is known', ['is_encoder_decoder']),
  ...withReason('adapters have no names here', ['model_adapter_name', 'ref_adapter_name']),
  ...withReason('--ref_model_name_or_path selects a second model', ['force_use_ref_model']),
};

/** A refused argument. With a value in `off` it is accepted, because it then requests nothing. */
interface Refusal {
  /** The reason, or the replacement. */
  reason: string;
  /** Values, in lower case, that request nothing. */
  off: readonly string[];
}

/** Values that turn an argument off. */
const OFF = ['false', 'no', 'off', '0', 'none', 'null', ''];

/** Refused arguments, by name. They would change the training. */
export const REFUSED: Readonly<Record<string, Refusal>> = {
  ...withRefusal('save the data set to a file and pass --data FILE.jsonl', [
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
  ...withRefusal('pass a file with fewer rows', ['max_train_samples', 'max_eval_samples']),
  ...withRefusal('uploads are not supported: run `hf upload` on the output folder', [
    'push_to_hub',
    'push_to_hub_revision',
  ]),
  ...withRefusal('--method cpo needs no reference', ['reference_free']),
  ...withRefusal('print samples with --sample after training', ['generate_during_eval']),
  ...withRefusal('no Python of a model is run', [
    'ref_model_init_kwargs',
    'teacher_model_init_kwargs',
  ]),
  ...withRefusal('set ZeRO stage 3 in the DeepSpeed configuration', [
    'fsdp',
    'fsdp_config',
    'fsdp_min_num_params',
    'fsdp_transformer_layer_cls_to_wrap',
  ]),
  ...withRefusal('pass a config.json with --config_name', ['config_overrides', 'model_type']),
  ...withRefusal('set it in the DeepSpeed configuration, and the ranks by `ds --num_gpus`', [
    'accelerator_config',
    'parallelism_config',
    'tp_size',
    'split_batches',
    'dispatch_batches',
    'sharded_ddp',
  ]),
  ...withRefusal('pass a smaller --per_device_train_batch_size', ['auto_find_batch_size']),
  ...withRefusal('write "optimizer" in the DeepSpeed configuration', [
    'adafactor',
    'optim_args',
    'optim_target_modules',
  ]),
  ...withRefusal('no Python of a model is run', ['trust_remote_code', 'model_init_kwargs']),
  ...withRefusal('load the saved folder in a program to predict', [
    'do_predict',
    'predict_with_generate',
  ]),
  ...withRefusal('set "offload_param" or --gradient_checkpointing', ['activation_offloading']),
  ...withRefusal('8-bit weights are not supported: use --load_in_4bit', ['load_in_8bit']),
  ...withRefusal("write it into the tokenizer's tokenizer_config.json", ['eos_token', 'pad_token']),
  ...withRefusal('hidden states of earlier batches are not supported', ['past_index']),
  ...withRefusal('gradients are always checked for infinity and NaN', ['debug']),
  ...withRefusal('XLA is not supported', ['tpu_num_cores', 'tpu_metrics_debug', 'use_mps_device']),
  ...withRefusal('IPEX and TorchScript are not supported', [
    'use_ipex',
    'jit_mode_eval',
    'torchdynamo',
  ]),
  ...withRefusal('apex is not supported: use --bf16 or --fp16', ['fp16_opt_level'], ['o1']),
  average_tokens_across_devices: {
    reason: "losses are averaged over all ranks' tokens",
    off: ['true', 'yes', '1'],
  },
  ...withRefusal('long rows always keep their start', ['truncation_mode'], ['keep_start']),
  ...withRefusal('set environment variables in the shell', ['env']),
};

function withReason(reason: string, names: readonly string[]): Record<string, string> {
  return Object.fromEntries(names.map((name) => [name, reason]));
}

function withRefusal(
  reason: string,
  names: readonly string[],
  off: readonly string[] = [],
): Record<string, Refusal> {
  return Object.fromEntries(names.map((name) => [name, { reason, off: [...OFF, ...off] }]));
}
