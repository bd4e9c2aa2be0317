// Tests resolveConfig with tables: accepted values and their resolution, refused values and their
// messages.
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';

import {
  checkConfig,
  type DsConfig,
  readConfig,
  resolveAuto,
  resolveConfig,
} from '../../lib/config/index.js';
import type { DsError } from '../../lib/errors.js';

const ONE = { worldSize: 1 };
const MICRO = { train_micro_batch_size_per_gpu: 2 };

let folder: string;
beforeAll(() => {
  folder = mkdtempSync(join(tmpdir(), 'ds-config-'));
});
afterAll(() => rmSync(folder, { recursive: true }));

function file(text: string): string {
  const path = join(folder, 'ds_config.json');
  writeFileSync(path, text);
  return path;
}

const OPTIMIZERS =
  '"Adam", "AdamW", "FusedAdam", "DeepSpeedCPUAdam", "SGD", "Adagrad", "RMSprop", "Lion", "Lamb", ' +
  '"FusedLamb", "Muon", "Adafactor", "AdamW8bit", ' +
  '"OneBitAdam", "ZeroOneAdam", "OneBitLamb", "OneBitSGD"';

/** The error for an intentionally wrong object. */
function refusal(config: unknown): DsError {
  const { errors } = checkConfig(config as DsConfig, ONE);
  return errors[0] as DsError;
}

test('an almost empty configuration gets every default', () => {
  expect(resolveConfig(MICRO, ONE)).toMatchObject({
    train_batch_size: 2,
    train_micro_batch_size_per_gpu: 2,
    gradient_accumulation_steps: 1,
    optimizer: null,
    scheduler: null,
    fp16: {
      enabled: false,
      loss_scale: 0,
      initial_scale_power: 16,
      loss_scale_window: 1000,
      hysteresis: 2,
      consecutive_hysteresis: false,
      min_loss_scale: 1,
    },
    bf16: { enabled: false, check_grad_overflow: true },
    zero_optimization: {
      stage: 0,
      offload_optimizer: { device: 'none', pin_memory: true, super_offload: null },
    },
    gradient_clipping: 1,
    prescale_gradients: false,
    steps_per_print: null,
    wall_clock_breakdown: false,
    tensorboard: { enabled: false, output_path: '', job_name: 'DeepSpeedJobName' },
    csv_monitor: { enabled: false, output_path: '', job_name: 'DeepSpeedJobName' },
    seed: null,
    notices: [],
  });
});

test('sections get the defaults of their type', () => {
  const { optimizer } = resolveConfig({ ...MICRO, optimizer: { type: 'Adam' } }, ONE);
  expect(optimizer).toEqual({
    type: 'Adam',
    legacy_fusion: false,
    params: {
      lr: 1e-3,
      betas: [0.9, 0.999],
      eps: 1e-8,
      weight_decay: 0,
      bias_correction: true,
      adam_w_mode: true,
      amsgrad: false,
      torch_adam: false,
    },
  });
  const scheduler = (section: DsConfig['scheduler']) =>
    resolveConfig({ ...MICRO, scheduler: section }, ONE).scheduler?.params;
  expect(scheduler({ type: 'WarmupLR' })).toEqual({
    warmup_min_lr: 0,
    warmup_max_lr: null,
    warmup_num_steps: 1000,
    warmup_type: 'log',
    last_batch_iteration: -1,
  });
  expect(scheduler({ type: 'WarmupDecayLR', params: { total_num_steps: 5e3 } })).toEqual({
    total_num_steps: 5000,
    warmup_min_lr: 0,
    warmup_max_lr: 1e-3,
    warmup_num_steps: 1000,
    warmup_type: 'log',
    last_batch_iteration: -1,
  });
  expect(scheduler({ type: 'WarmupCosineLR', params: { total_num_steps: 5e3 } })).toEqual({
    total_num_steps: 5000,
    warmup_min_ratio: 0,
    warmup_num_steps: 1000,
    cos_min_ratio: 1e-4,
    warmup_type: 'log',
    last_batch_iteration: -1,
  });
  const cycle = { cycle_min_lr: 1e-4, cycle_max_lr: 1e-3 };
  expect(scheduler({ type: 'OneCycle', params: cycle })).toEqual({
    ...cycle,
    decay_lr_rate: 0,
    cycle_first_step_size: 2000,
    cycle_second_step_size: null,
    cycle_first_stair_count: 0,
    cycle_second_stair_count: null,
    decay_step_size: 0,
    cycle_momentum: true,
    cycle_min_mom: 0.8,
    cycle_max_mom: 0.9,
    decay_mom_rate: 0,
    last_batch_iteration: -1,
  });
  expect(scheduler({ type: 'ConstantLR' })).toEqual({ factor: 1 / 3, total_iters: 5 });
});

test.each(['adam', 'ADAM', 'Adam'])('optimizer names are case-insensitive: %s', (type) => {
  const config = { ...MICRO, optimizer: { type } } as DsConfig;
  expect(resolveConfig(config, ONE).optimizer?.type).toBe('Adam');
});

test('the result is frozen at every depth, and the source does not change', () => {
  const source: DsConfig = {
    ...MICRO,
    optimizer: { type: 'AdamW', params: { betas: [0.8, 0.9] } },
  };
  const before = structuredClone(source);
  const config = resolveConfig(source, ONE);
  const betas = config.optimizer?.type === 'AdamW' && config.optimizer.params.betas;
  expect(Object.isFrozen(betas || [])).toBe(true);
  expect(Object.isFrozen(config.zero_optimization.offload_optimizer)).toBe(true);
  expect(source).toEqual(before);
  expect(Object.isFrozen(source.optimizer)).toBe(false);
});

test('a file may have comments, trailing commas and numbers like 5e8', () => {
  const path = file(`{
    // the batch
    "train_batch_size": 1.6e1, /* 16 */
    "zero_optimization": { "stage": 2, "reduce_bucket_size": 2e8, },
  }`);
  const config = resolveConfig(path, ONE);
  expect(config.train_micro_batch_size_per_gpu).toBe(16);
  expect(config.notices).toEqual([
    expect.stringMatching(
      /\/ds_config.json:4:40: zero_optimization.reduce_bucket_size has no effect: one rank/,
    ),
  ]);
});

test.each([
  ['graph_harvesting', { graph_harvesting: true }],
  ['pipeline.micro_batch_size', { pipeline: { micro_batch_size: 4 } }],
  ['zero_optimization.overlap_comm', { zero_optimization: { overlap_comm: true } }],
  [
    'zero_optimization.stage3_max_live_parameters',
    {
      zero_optimization: { stage3_max_live_parameters: 2e9 },
    },
  ],
  [
    'zero_optimization.offload_param',
    {
      zero_optimization: { stage: 2, offload_param: { device: 'cpu', pin_memory: true } },
    },
  ],
] as const)('%s is accepted with one line', (path, extra) => {
  const { notices } = resolveConfig({ ...MICRO, ...extra } as DsConfig, ONE);
  expect(notices).toEqual([expect.stringContaining(`${path} has no effect: `)]);
});

test('null batch sizes count as absent', () => {
  const nothing = { train_batch_size: null, gradient_accumulation_steps: null };
  const options = { ...MICRO, ...nothing };
  const training = { perDeviceBatchSize: 2, accumulationSteps: 3 };
  for (const [auto, steps] of [[{}, 1] as const, [{ training, mustMatch: true }, 3] as const]) {
    expect(resolveConfig(options, { worldSize: 2, auto })).toMatchObject({
      train_batch_size: 4 * steps,
      gradient_accumulation_steps: steps,
    });
  }
  const total = { train_batch_size: 'auto', train_micro_batch_size_per_gpu: null } as const;
  expect(resolveAuto(total, { training })).toEqual({ train_micro_batch_size_per_gpu: 2 });
  expect(() => resolveConfig({ train_batch_size: null }, ONE)).toThrow(/got neither/);
});

test.each([
  [{ wall_clock_breakdown: false }],
  [{ flops_profiler: { enabled: false, profile_step: 1 } }],
  [{ sparse_attention: false }],
  [{ elasticity: null }],
  [{ fp16: { auto_cast: false } }],
  [{ autotuning: { enabled: false, metric: 'flops' } }],
  [{ zero_optimization: { overlap_comm: false, offload_param: { device: 'none' } } }],
])('a known key that is off is silent: %j', (extra) => {
  expect(resolveConfig({ ...MICRO, ...extra } as DsConfig, ONE).notices).toEqual([]);
});

const UNKNOWN = [
  [{ flop_counter: { enabled: false } }, 'flop_counter', ''],
  [{ tensorboard: { log_dir: 'x' } }, 'tensorboard.log_dir', ''],
  [{ csv_monitor: { jobname: 'x' } }, 'csv_monitor.jobname', 'Did you mean "job_name"?'],
  [{ gradient_cliping: 1 }, 'gradient_cliping', 'Did you mean "gradient_clipping"?'],
  [{ zero_optimisation: {} }, 'zero_optimisation', 'Did you mean "zero_optimization"?'],
  [{ zero_optimization: { stge: 2 } }, 'zero_optimization.stge', 'Did you mean "stage"?'],
  [{ fp16: { enabld: true } }, 'fp16.enabld', 'Did you mean "enabled"?'],
  [{ reduce_scatter: true }, 'reduce_scatter', 'Did you mean "zero_optimization.reduce_scatter"?'],
  [
    { zero_optimization: { offload_optimizer: { buffer_size: 1 } } },
    'zero_optimization.offload_optimizer.buffer_size',
    'DeepSpeed no longer has it.',
  ],
  [{ optimizer: { type: 'Adam', param: {} } }, 'optimizer.param', 'Did you mean "params"?'],
] as const;

test.each(UNKNOWN)('an unknown key is dropped with a notice: %j', (extra, path, hint) => {
  const config = resolveConfig({ ...MICRO, ...extra } as DsConfig, ONE);
  expect(config.notices).toEqual([`${path} is unknown and ignored. ${hint}`.trim()]);
  expect(config).not.toHaveProperty(path);
});

test.each(UNKNOWN)('an unknown key is an error under strict: %j', (extra, path, hint) => {
  const strict = { ...ONE, strict: true };
  const { errors } = checkConfig({ ...MICRO, ...extra } as DsConfig, strict);
  expect(errors).toEqual([expect.objectContaining({ code: 'DS_CONFIG', path, hint })]);
});

test.each([
  [{ optimizer: { type: 'Adam', params: { beta: [0, 0] } } }, 'optimizer.params.beta', /"betas"/],
  [
    { optimizer: { type: 'Adam', params: { max_grad_norm: 1 } } },
    'optimizer.params.max_grad_norm',
    /"gradient_clipping"/,
  ],
  [
    { scheduler: { type: 'WarmupLR', params: { warmup_steps: 5 } } },
    'scheduler.params.warmup_steps',
    /"warmup_num_steps"/,
  ],
])('an unknown parameter is always an error: %j', (extra, path, hint) => {
  const error = refusal({ ...MICRO, ...extra });
  expect(error).toMatchObject({ code: 'DS_CONFIG', op: path });
  expect(error.hint).toMatch(hint);
});

test.each([
  [{ train_batch_size: 0 }, 'train_batch_size', 'a value >= 1', '0'],
  [{ train_batch_size: 2.5 }, 'train_batch_size', 'an integer or null', '2.5'],
  [{ train_batch_size: '5e2' }, 'train_batch_size', 'an integer or null', '"5e2"'],
  [{ gradient_clipping: -1 }, 'gradient_clipping', 'a value >= 0', '-1'],
  [{ gradient_clipping: Number.NaN }, 'gradient_clipping', 'a number', 'NaN'],
  [{ zero_optimization: { stage: 4 } }, 'zero_optimization.stage', '0, 1, 2, 3', '4'],
  [{ zero_optimization: 1 }, 'zero_optimization', 'an object', '1'],
  [
    { zero_optimization: { offload_param: { device: 'disk' } } },
    'zero_optimization.offload_param.device',
    '"none", "cpu", "nvme"',
    '"disk"',
  ],
  [{ amp: { enabled: true } }, 'amp', '"enabled": false', 'a section that is on'],
  [{ sparse_attention: true }, 'sparse_attention', 'a section, or false', 'true'],
  [
    { sparse_attention: { block: 24 } },
    'sparse_attention.block',
    'a power of two of tokens, at least 16',
    '24',
  ],
  [
    { sparse_attention: { num_global_blocks: 3 } },
    'sparse_attention.num_global_blocks',
    'a divisor of the 4 blocks of a window',
    '3',
  ],
  [
    { zero_optimization: { stage: 2, mics_shard_size: 2 } },
    'zero_optimization.stage',
    '3 with mics_shard_size',
    '2',
  ],
  [
    { zero_optimization: { stage: 1, zero_quantized_gradients: true } },
    'zero_optimization.stage',
    '3 with zero_quantized_gradients',
    '1',
  ],
  [
    { zero_optimization: { stage: 3, mics_shard_size: 2, zero_hpz_partition_size: 2 } },
    'zero_optimization.zero_hpz_partition_size',
    '1 with mics_shard_size',
    '2',
  ],
  [{ fp16: { enabled: 2 } }, 'fp16.enabled', 'a boolean', '2'],
  [{ fp16: { loss_scale: -2 } }, 'fp16.loss_scale', 'a value >= 0', '-2'],
  [{ fp16: { loss_scale_window: 0 } }, 'fp16.loss_scale_window', 'a value >= 1', '0'],
  [{ optimizer: {} }, 'optimizer.type', 'a value', 'nothing'],
  [{ optimizer: { type: 'AdmW' } }, 'optimizer.type', OPTIMIZERS, '"AdmW"'],
  [
    { optimizer: { type: 'Adam', params: { betas: [0.9] } } },
    'optimizer.params.betas',
    '2 items',
    '[0.9]',
  ],
  [
    { optimizer: { type: 'Adam', params: { betas: [0.9, 1] } } },
    'optimizer.params.betas.1',
    'a value < 1',
    '1',
  ],
  [
    { scheduler: { type: 'WarmupDecayLR', params: {} } },
    'scheduler.params.total_num_steps',
    'a value',
    'nothing',
  ],
  [
    { scheduler: { type: 'WarmupLr' } },
    'scheduler.type',
    '"WarmupLR", "WarmupDecayLR", "WarmupCosineLR", "OneCycle", "LRRangeTest", ' +
      '"CosineAnnealingLR", "StepLR", "ExponentialLR", "PolynomialLR", "ConstantLR", ' +
      '"MultiStepLR", "LinearLR", "CosineAnnealingWarmRestarts", "ReduceLROnPlateau"',
    '"WarmupLr"',
  ],
  [
    { scheduler: { type: 'OneCycle', params: { cycle_min_lr: 0 } } },
    'scheduler.params.cycle_max_lr',
    'a value',
    'nothing',
  ],
  [
    { scheduler: { type: 'LRRangeTest', params: { lr_range_test_step_size: 0.5 } } },
    'scheduler.params.lr_range_test_step_size',
    'an integer',
    '0.5',
  ],
  [
    { scheduler: { type: 'ReduceLROnPlateau', params: { factor: 1 } } },
    'scheduler.params.factor',
    'a value < 1',
    '1',
  ],
  [{ tensorboard: { job_name: 7 } }, 'tensorboard.job_name', 'a string', '7'],
  [{ steps_per_print: 0 }, 'steps_per_print', 'a value >= 1', '0'],
])('a wrong value is refused: %j', (extra, op, expected, got) => {
  expect(refusal({ ...MICRO, ...extra })).toMatchObject({ code: 'DS_CONFIG', op, expected, got });
});

test.each([
  [{ fp16: { enabled: true }, bf16: { enabled: true } }, 'fp16.enabled', /Set one of/],
  [
    { zero_optimization: { offload_optimizer: { device: 'cpu' } } },
    'zero_optimization.stage',
    /stage to 2/,
  ],
  [
    { fp16: { enabled: true, initial_scale_power: 2, min_loss_scale: 8 } },
    'fp16.initial_scale_power',
    /Raise/,
  ],
  [
    { optimizer: { type: 'AdamW', params: { adam_w_mode: false } } },
    'optimizer.params.adam_w_mode',
    /"Adam"/,
  ],
])('keys that disagree are refused: %j', (extra, op, hint) => {
  const error = refusal({ ...MICRO, ...extra });
  expect(error).toMatchObject({ code: 'DS_CONFIG', op });
  expect(error.hint).toMatch(hint);
});

test.each([
  ['{ "train_batch_size": 1, }}', /ds_config.json:1:27: expected nothing after the end/],
  ['{\n  "train_batch_size" 1\n}', /ds_config.json:2:22: expected ":" after the key/],
  ['', /empty file|value expected/],
  ['[1]', /expected one JSON object, got an array/],
  [
    '{\n "fp16": {\n  "enabled": false,\n  "enabled": true } }',
    /ds_config.json:\d:3: fp16.enabled: expected every key once/,
  ],
  [
    '{\n "train_batch_size": 4,\n  "fp16": { "enabled": 7 } }',
    /ds_config.json:3:13: fp16.enabled: expected a boolean, got 7/,
  ],
  [
    '{\n "train_batch_size": 4,\n  "optimizer": { "params": {} } }',
    /ds_config.json:3:3: optimizer.type: expected a value, got nothing/,
  ],
])('a faulty file is refused with line and column: %j', (text, message) => {
  expect(() => resolveConfig(file(text), ONE)).toThrow(message);
});

test('URL-safe base64 of a file is read like the file', () => {
  const text = '{ "train_batch_size": 3, "optimizer": { "type": "Adam" } }';
  const encoded = Buffer.from(text).toString('base64url');
  expect(resolveConfig(encoded, ONE).train_batch_size).toBe(3);
});

test('readConfig() returns the file unchanged', () => {
  const path = file('{ "train_batch_size": 3, /* kept */ "mine": [1, 2] }');
  expect(readConfig(path)).toEqual({ train_batch_size: 3, mine: [1, 2] });
});

test('a section without its type gives one error', () => {
  const { errors } = checkConfig({ ...MICRO, optimizer: {}, scheduler: {} } as never, ONE);
  expect(errors.map(({ path }) => path)).toEqual(['optimizer.type', 'scheduler.type']);
});

test('a file that is not there', () => {
  expect(() => resolveConfig(join(folder, 'absent.json'), ONE)).toThrow(
    expect.objectContaining({ code: 'DS_CONFIG', got: expect.stringContaining('ENOENT') }),
  );
});

test.each([[null], [7], [[]], [undefined]])('%p is no configuration', (source) => {
  expect(() => resolveConfig(source as unknown as DsConfig, ONE)).toThrow(/ds_config.json, or an/);
});

test('several errors: all in checkConfig, the first and a count in resolveConfig', () => {
  const config = { ...MICRO, amp: { enabled: true }, gradient_clipping: -1, seed: 1.5 };
  expect(checkConfig(config as DsConfig, ONE).errors).toHaveLength(3);
  expect(() => resolveConfig(config as DsConfig, ONE)).toThrow(/2 more: `ds validate`/);
});

test('a mistyped key is a type error', () => {
  // @ts-expect-error no such key
  const config: DsConfig = { train_batch_sizes: 4 };
  expect(() => resolveConfig(config, ONE)).toThrow('train_batch_size');
});

test('the error that a misspelled key causes names the key', () => {
  expect(() => resolveConfig({ train_batch_sze: 1, sead: 2, zz: 3 } as DsConfig, ONE)).toThrow(
    /got neither\. .* train_batch_sze is unknown and ignored\. Did you mean "train_batch_size"\? sead is unknown and ignored\. Did you mean "seed"\?$/,
  );
});
