// Tests the types of an inline configuration. Documented keys compile; a mistyped key or a wrong
// option does not, and the reader agrees.
import { checkConfig, type DsConfig, type ResolvedConfig } from '../../lib/config/index.js';

const MICRO = { train_micro_batch_size_per_gpu: 2 };

function check(config: DsConfig) {
  return checkConfig({ ...MICRO, ...config }, { worldSize: 1 });
}

/**
 * In each line the compiler must find exactly one mistake: scripts/check fails where it does not.
 */
const wrong: readonly DsConfig[] = [
  // @ts-expect-error a mistyped key at the top
  { gradient_cliping: 1 },
  // @ts-expect-error a mistyped section
  { zero_optimisation: { stage: 1 } },
  // @ts-expect-error text for a number
  { train_batch_size: 'sixteen' },
  // @ts-expect-error a number for a switch
  { wall_clock_breakdown: 7 },
  // @ts-expect-error a dtype that is none
  { communication_data_type: 'fp8' },
  // @ts-expect-error "auto" where nobody fills it
  { prescale_gradients: 'auto' },
  // @ts-expect-error a mistyped key in a section
  { zero_optimization: { stge: 2 } },
  // @ts-expect-error a stage that is none
  { zero_optimization: { stage: 4 } },
  // @ts-expect-error a mistyped key two sections down
  { zero_optimization: { stage: 1, offload_optimizer: { divice: 'cpu' } } },
  // @ts-expect-error a device that is none
  { zero_optimization: { stage: 1, offload_optimizer: { device: 'disk' } } },
  // @ts-expect-error a key of another section
  { bf16: { loss_scale: 128 } },
  // @ts-expect-error a mistyped key of a monitor
  { tensorboard: { enabled: true, job: 'run' } },
  // @ts-expect-error a value that the metric of a search does not have
  { autotuning: { enabled: true, metric: 'speed' } },
  // @ts-expect-error a type that is none
  { optimizer: { type: 'AdmW' } },
  // @ts-expect-error a type that is not supported yet
  { optimizer: { type: 'MuAdam' } },
  // @ts-expect-error a parameter of 0/1 Adam
  { optimizer: { type: 'OneBitAdam', params: { var_freeze_step: 3 } } },
  // @ts-expect-error a section without type
  { optimizer: { params: { lr: 1e-3 } } },
  // @ts-expect-error a parameter of another optimizer
  { optimizer: { type: 'AdamW', params: { momentum: 0.9 } } },
  // @ts-expect-error a parameter of another optimizer, type in lower case
  { optimizer: { type: 'sgd', params: { betas: [0.9, 0.999] } } },
  // @ts-expect-error a mistyped parameter
  { optimizer: { type: 'Lion', params: { learning_rate: 1e-4 } } },
  // @ts-expect-error three values for a pair
  { optimizer: { type: 'Adam', params: { betas: [0.9, 0.99, 0.999] } } },
  // @ts-expect-error a method that is none
  { optimizer: { type: 'Muon', params: { ns_method: 'fast' } } },
  // @ts-expect-error a parameter of another schedule
  { scheduler: { type: 'WarmupLR', params: { total_num_steps: 10 } } },
  // @ts-expect-error a parameter that must be there
  { scheduler: { type: 'WarmupDecayLR', params: {} } },
  // @ts-expect-error parameters that must be there
  { scheduler: { type: 'OneCycle' } },
  // @ts-expect-error a shape that is none
  { scheduler: { type: 'WarmupLR', params: { warmup_type: 'cubic' } } },
];

test.each(wrong.map((config) => [config]))('the reader objects too: %j', (config) => {
  const { config: resolved, errors } = check(config);
  expect([...errors, ...(resolved?.notices ?? [])]).not.toEqual([]);
});

const good: readonly DsConfig[] = [
  {
    $schema: './node_modules/@ds/native/ds_config.schema.json',
    gradient_accumulation_steps: 2,
    optimizer: { type: 'AdamW', params: { lr: 1e-5, betas: [0.9, 0.999], weight_decay: 0.01 } },
    scheduler: { type: 'WarmupLR', params: { warmup_max_lr: null, warmup_type: 'linear' } },
    zero_optimization: { stage: 2, offload_optimizer: { device: 'cpu' }, overlap_comm: true },
    fp16: { enabled: true, loss_scale: 0 },
    communication_data_type: 'fp32',
    pipeline: { stages: 2 },
  },
  { zero_optimization: { stage3_prefetch_bucket_size: 10, param_persistence_threshold: 10 } },
  { optimizer: { type: 'FusedAdam' }, scheduler: null },
  { optimizer: { type: 'adamw', params: { adam_w_mode: true } } },
  { optimizer: { type: 'ADAM', params: { adam_w_mode: false } } },
  { optimizer: { type: 'DeepSpeedCPUAdam', params: { eps: 1e-8 } } },
  { optimizer: { type: 'SGD', params: { momentum: 0.9, nesterov: true } } },
  { optimizer: { type: 'sgd' } },
  { optimizer: { type: 'Adagrad', params: { lr_decay: 0.1 } } },
  { optimizer: { type: 'Lion', params: { betas: [0.9, 0.99] } } },
  { optimizer: { type: 'Lamb', params: { max_coeff: 5 } } },
  { optimizer: { type: 'FusedLamb' } },
  { optimizer: { type: 'Muon', params: { muon_lr: 0.02, ns_method: 'standard' } } },
  { scheduler: { type: 'WarmupDecayLR', params: { total_num_steps: 2000 } } },
  { scheduler: { type: 'WarmupCosineLR', params: { total_num_steps: 2000 } } },
  { scheduler: { type: 'OneCycle', params: { cycle_min_lr: 1e-4, cycle_max_lr: 1e-3 } } },
  { scheduler: { type: 'LRRangeTest' } },
  { scheduler: { type: 'CosineAnnealingLR', params: { T_max: 100 } } },
  { scheduler: { type: 'StepLR', params: { step_size: 10 } } },
  { scheduler: { type: 'ExponentialLR', params: { gamma: 0.9 } } },
  { scheduler: { type: 'PolynomialLR' } },
  { scheduler: { type: 'ConstantLR' } },
  { scheduler: { type: 'ReduceLROnPlateau', params: { mode: 'max' } } },
];

test.each(good.map((config) => [config]))('the reader accepts it too: %j', (config) => {
  expect(check(config).errors).toEqual([]);
});

/** Compiles: an `as const` value with read-only lists. */
const constant = {
  optimizer: { type: 'AdamW', params: { betas: [0.9, 0.999] } },
  scheduler: { type: 'MultiStepLR', params: { milestones: [10, 20] } },
  comms_logger: { enabled: true, prof_ops: ['all_reduce'] },
} as const satisfies DsConfig;

test('a constant is read, and stays as it is', () => {
  expect(check(constant).errors).toEqual([]);
  expect(constant.optimizer.params.betas).toEqual([0.9, 0.999]);
});

/** Compiles: "auto" for values that Hugging Face fills, and old names. */
const forTheTrainer: readonly DsConfig[] = [
  {
    train_batch_size: 'auto',
    train_micro_batch_size_per_gpu: 'auto',
    gradient_accumulation_steps: 'auto',
    gradient_clipping: 'auto',
    optimizer: {
      type: 'AdamW',
      params: { lr: 'auto', betas: 'auto', eps: 'auto', weight_decay: 'auto' },
    },
    scheduler: {
      type: 'WarmupDecayLR',
      params: {
        total_num_steps: 'auto',
        warmup_min_lr: 'auto',
        warmup_max_lr: 'auto',
        warmup_num_steps: 'auto',
      },
    },
    fp16: { enabled: 'auto' },
    bf16: { enabled: 'auto' },
    zero_optimization: {
      reduce_bucket_size: 'auto',
      stage3_prefetch_bucket_size: 'auto',
      stage3_param_persistence_threshold: 'auto',
    },
  },
  { bfloat16: { enabled: true }, zero_optimization: { cpu_offload: true } },
];

/** The resolved configuration has no old name, no alias and no "auto", also in its type. */
function read(config: ResolvedConfig): void {
  const clipping: number = config.gradient_clipping;
  const bucket: number = config.zero_optimization.stage3_prefetch_bucket_size;
  const device: 'none' | 'cpu' | 'nvme' = config.zero_optimization.offload_optimizer.device;
  expect([clipping, bucket, device]).toEqual([1, 5e7, 'none']);
  // @ts-expect-error an old name
  expect(config.bfloat16).toBeUndefined();
  // @ts-expect-error a second name
  expect(config.zero_optimization.prefetch_bucket_size).toBeUndefined();
  // @ts-expect-error read-only
  expect(() => (config.gradient_clipping = 2)).toThrow('read only');
}

test('a resolved configuration matches its type', () => {
  const { config } = check({});
  read(config as ResolvedConfig);
  expect(forTheTrainer).toHaveLength(2);
});
