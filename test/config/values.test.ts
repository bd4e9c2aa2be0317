// Values: DeepSpeed's coercions, "auto", and keys that have no effect or are not supported.
import {
  type AutoSources,
  checkConfig,
  type DsConfig,
  resolveAuto,
  resolveConfig,
} from '../../lib/config/index.js';
import type { Section } from '../../lib/config/schema.js';

const ONE = { worldSize: 1 };
const MICRO = { train_micro_batch_size_per_gpu: 2 };

function check(extra: Section, auto?: AutoSources, worldSize = 1) {
  return checkConfig({ ...MICRO, ...extra } as DsConfig, { worldSize, auto });
}

function get(config: unknown, path: string): unknown {
  return path.split('.').reduce<unknown>((section, key) => (section as Section)[key], config);
}

const zero = (section: Section) => ({ zero_optimization: section });
const adam = (params: Section) => ({ optimizer: { type: 'Adam', params } });

describe('coercion', () => {
  test.each<[extra: Section, path: string, value: unknown]>([
    [zero({ reduce_bucket_size: '500' }), 'zero_optimization.reduce_bucket_size', 500],
    [zero({ reduce_bucket_size: ' 500.0 ' }), 'zero_optimization.reduce_bucket_size', 500],
    [zero({ reduce_bucket_size: true }), 'zero_optimization.reduce_bucket_size', 1],
    [zero({ stage: '2' }), 'zero_optimization.stage', 2],
    [zero({ stage: true }), 'zero_optimization.stage', 1],
    [{ fp16: { enabled: 1 } }, 'fp16.enabled', true],
    [{ fp16: { enabled: 0 } }, 'fp16.enabled', false],
    [{ fp16: { enabled: 'yes' } }, 'fp16.enabled', true],
    [{ fp16: { enabled: 'True' } }, 'fp16.enabled', true],
    [{ fp16: { enabled: 'on' } }, 'fp16.enabled', true],
    [{ fp16: { enabled: 'off' } }, 'fp16.enabled', false],
    [{ fp16: { enabled: 'no' } }, 'fp16.enabled', false],
    [{ fp16: { loss_scale: '1e3' } }, 'fp16.loss_scale', 1000],
    [{ gradient_clipping: '1e-3' }, 'gradient_clipping', 1e-3],
    [{ gradient_clipping: '.5' }, 'gradient_clipping', 0.5],
    [{ steps_per_print: '10' }, 'steps_per_print', 10],
    [adam({ lr: '1e-5' }), 'optimizer.params.lr', 1e-5],
  ])('%j is accepted with a notice', (extra, path, value) => {
    const { config, notices } = check(extra);
    expect(get(config, path)).toBe(value);
    expect(notices).toContainEqual(expect.objectContaining({ kind: 'coerced', path }));
  });

  test.each<[extra: Section, path: string, value: unknown]>([
    [zero({ reduce_bucket_size: 5e8 }), 'zero_optimization.reduce_bucket_size', 500_000_000],
    [zero({ stage: 2.0 }), 'zero_optimization.stage', 2],
    [{ gradient_allreduce_op: 'SUM' }, 'gradient_allreduce_op', 'sum'],
    [{ communication_data_type: 'FP32' }, 'communication_data_type', 'fp32'],
    [{ checkpoint: { tag_validation: 'FAIL' } }, 'checkpoint.tag_validation', 'Fail'],
    [{ optimizer: { type: 'ADAMW' } }, 'optimizer.type', 'AdamW'],
    [{ optimizer: { type: 'lAmB' } }, 'optimizer.type', 'Lamb'],
    [{ steps_per_print: Number.POSITIVE_INFINITY }, 'steps_per_print', null],
    [{ steps_per_print: 'inf' }, 'steps_per_print', null],
  ])('%j is a value like any other', (extra, path, value) => {
    const { config, notices } = check(extra);
    expect(get(config, path)).toBe(value);
    expect(notices.filter(({ kind }) => kind === 'coerced')).toEqual([]);
  });

  test.each([
    ...['fp32', 'FP32', 'float32', 'float', 'torch.float32'].map((name) => [name, 'fp32']),
    ...['bfloat16', 'torch.bfloat16', 'BFloat16'].map((name) => [name, 'bf16']),
    ...['float16', 'half', 'torch.float16'].map((name) => [name, 'fp16']),
  ])('data_types: %s is %s', (name, dtype) => {
    const data_types = { grad_accum_dtype: name, param_dtype: name, buffer_dtype: name };
    const { config, notices } = check({
      data_types,
      bf16: { enabled: dtype === 'bf16' },
      fp16: { enabled: dtype === 'fp16' },
    });
    expect(notices).toEqual([]);
    expect(config?.data_types).toEqual({
      grad_accum_dtype: dtype,
      param_dtype: dtype,
      buffer_dtype: dtype,
    });
  });

  test.each<[extra: Section, path: string]>([
    [zero({ reduce_bucket_size: 5.5 }), 'zero_optimization.reduce_bucket_size'],
    [zero({ reduce_bucket_size: '5.5' }), 'zero_optimization.reduce_bucket_size'],
    [zero({ reduce_bucket_size: '5e8' }), 'zero_optimization.reduce_bucket_size'],
    [zero({ reduce_bucket_size: null }), 'zero_optimization.reduce_bucket_size'],
    [zero({ reduce_bucket_size: 1e19 }), 'zero_optimization.reduce_bucket_size'],
    [zero({ reduce_bucket_size: -1 }), 'zero_optimization.reduce_bucket_size'],
    [zero({ stage: 4 }), 'zero_optimization.stage'],
    [zero({ stage: -1 }), 'zero_optimization.stage'],
    [zero({ stage: 'two' }), 'zero_optimization.stage'],
    [zero({ offload_optimizer: { device: 'CPU' } }), 'zero_optimization.offload_optimizer.device'],
    [zero({ offload_optimizer: { device: null } }), 'zero_optimization.offload_optimizer.device'],
    [{ fp16: { enabled: 2 } }, 'fp16.enabled'],
    [{ fp16: { enabled: 'maybe' } }, 'fp16.enabled'],
    [{ fp16: { loss_scale: true } }, 'fp16.loss_scale'],
    [{ fp16: { loss_scale: Number.POSITIVE_INFINITY } }, 'fp16.loss_scale'],
    [{ fp16: { loss_scale: Number.NaN } }, 'fp16.loss_scale'],
    [{ fp16: { loss_scale: -1 } }, 'fp16.loss_scale'],
    [{ fp16: { loss_scale_window: true } }, 'fp16.loss_scale_window'],
    [{ fp16: { loss_scale_window: 0 } }, 'fp16.loss_scale_window'],
    [{ fp16: { min_loss_scale: true } }, 'fp16.min_loss_scale'],
    [{ fp16: { min_loss_scale: 0 } }, 'fp16.min_loss_scale'],
    [{ gradient_allreduce_op: 'max' }, 'gradient_allreduce_op'],
    [{ communication_data_type: 'fp8' }, 'communication_data_type'],
    [{ communication_data_type: 'null' }, 'communication_data_type'],
    [{ communication_data_type: 'float32' }, 'communication_data_type'],
    [{ data_types: { param_dtype: 'int8' } }, 'data_types.param_dtype'],
  ])('%j is refused', (extra, path) => {
    const { config, errors } = check(extra);
    expect(config).toBeNull();
    expect(errors).toEqual([expect.objectContaining({ code: 'DS_CONFIG', path })]);
  });
});

const SOURCES: AutoSources = {
  model: { hiddenSize: 1023 },
  training: {
    lr: 3e-4,
    betas: [0.8, 0.95],
    eps: 1e-7,
    weightDecay: 0.1,
    warmupSteps: 20,
    totalSteps: 200,
    maxGradNorm: 0.5,
    perDeviceBatchSize: 4,
    accumulationSteps: 3,
    fp16: true,
    bf16: false,
  },
};

const AUTO = {
  train_batch_size: 'auto',
  train_micro_batch_size_per_gpu: 'auto',
  gradient_accumulation_steps: 'auto',
  gradient_clipping: 'auto',
  optimizer: {
    type: 'adamw',
    params: { lr: 'auto', betas: 'auto', eps: 'auto', weight_decay: 'auto' },
  },
  scheduler: {
    type: 'WarmupDecayLR',
    params: {
      warmup_min_lr: 'auto',
      warmup_max_lr: 'auto',
      warmup_num_steps: 'auto',
      total_num_steps: 'auto',
    },
  },
  fp16: { enabled: 'auto' },
  bf16: { enabled: 'auto' },
  zero_optimization: {
    stage: 3,
    reduce_bucket_size: 'auto',
    stage3_prefetch_bucket_size: 'auto',
    param_persistence_threshold: 'auto',
  },
} as unknown as DsConfig;

describe('auto', () => {
  test('every value that Hugging Face fills', () => {
    const { config, origins, errors } = checkConfig(AUTO, { worldSize: 2, auto: SOURCES });
    expect(errors).toEqual([]);
    expect(config).toMatchObject({
      train_batch_size: 24,
      train_micro_batch_size_per_gpu: 4,
      gradient_accumulation_steps: 3,
      gradient_clipping: 0.5,
      optimizer: {
        type: 'AdamW',
        params: { lr: 3e-4, betas: [0.8, 0.95], eps: 1e-7, weight_decay: 0.1 },
      },
      scheduler: {
        params: {
          warmup_min_lr: 0,
          warmup_max_lr: 3e-4,
          warmup_num_steps: 20,
          total_num_steps: 200,
        },
      },
      fp16: { enabled: true },
      bf16: { enabled: false },
      zero_optimization: {
        reduce_bucket_size: 1023 ** 2,
        stage3_prefetch_bucket_size: Math.floor(0.9 * 1023 ** 2),
        stage3_param_persistence_threshold: 10_230,
      },
    });
    expect(origins).toMatchObject({
      train_batch_size: { from: 'derived', of: expect.stringContaining('world size 2') },
      'optimizer.params.lr': { from: 'auto', of: 'training.lr' },
      'zero_optimization.reduce_bucket_size': { from: 'auto', of: 'model.hiddenSize^2' },
    });
  });

  test('resolveAuto fills a configuration that resolves without sources', () => {
    const filled = resolveAuto(AUTO, SOURCES);
    expect(JSON.stringify(filled)).not.toContain('auto');
    const direct = resolveConfig(AUTO, { worldSize: 2, auto: SOURCES });
    expect(resolveConfig(filled, { worldSize: 2 })).toEqual({
      ...direct,
      notices: expect.anything(),
    });
    expect(() => resolveAuto(AUTO, {})).toThrow(/"auto" in train_batch_size .*optimizer.params.lr/);
  });

  test('one error names all that nothing fills; sections that drop "auto" get the default', () => {
    const { errors, notices } = checkConfig(AUTO, ONE);
    expect(errors).toHaveLength(1);
    for (const name of [
      'train_batch_size',
      'train_micro_batch_size_per_gpu (needs training.perDeviceBatchSize)',
      'gradient_clipping (needs training.maxGradNorm)',
      'optimizer.params.betas (needs training.betas)',
      'scheduler.params.total_num_steps (needs training.totalSteps)',
    ]) {
      expect(errors[0]?.got).toContain(name);
    }
    expect(errors[0]?.got).not.toMatch(/zero_optimization|fp16/);
    expect(notices.map(({ path }) => path).sort()).toEqual([
      'bf16.enabled',
      'fp16.enabled',
      'zero_optimization.param_persistence_threshold',
      'zero_optimization.reduce_bucket_size',
      'zero_optimization.stage3_prefetch_bucket_size',
    ]);
  });

  test.each<[extra: Section, total: number, micro: number, steps: number]>([
    [{ train_batch_size: 'auto' }, 2, 2, 1],
    [{ train_batch_size: 8, train_micro_batch_size_per_gpu: 'auto' }, 8, 8, 1],
    [{ gradient_accumulation_steps: 'auto' }, 2, 2, 1],
    [{ train_batch_size: 8, gradient_accumulation_steps: 'auto' }, 8, 2, 4],
  ])('a batch size that the others determine: %j', (extra, total, micro, steps) => {
    const { config } = check(extra);
    expect(config).toMatchObject({
      train_batch_size: total,
      train_micro_batch_size_per_gpu: micro,
      gradient_accumulation_steps: steps,
    });
  });

  test.each([
    [zero({ stage: 2, sub_group_size: 'auto' }), 'zero_optimization.sub_group_size', 1e9],
    [{ tensorboard: { enabled: 'auto' } }, 'tensorboard.enabled', false],
    [
      zero({ offload_optimizer: { device: 'auto' } }),
      'zero_optimization.offload_optimizer.device',
      'none',
    ],
  ])('DeepSpeed reads it as not given: %j', (extra, path, value) => {
    const { config, notices } = check(extra);
    expect(get(config, path)).toBe(value);
    expect(notices).toEqual([expect.objectContaining({ kind: 'auto', path })]);
  });

  test.each([
    [{ seed: 'auto' }, 'seed'],
    [{ aio: { block_size: 'auto' } }, 'aio.block_size'],
    [adam({ bias_correction: 'auto' }), 'optimizer.params.bias_correction'],
  ])('a configuration whose "auto" nothing fills is refused: %j', (extra, path) => {
    const { errors } = check(extra, SOURCES);
    expect(errors).toEqual([expect.objectContaining({ path })]);
    expect(errors[0]?.got).toContain('nothing fills it');
  });

  test('"auto" of keys that define it stays "auto"', () => {
    const { config, errors } = check({ pipeline: { stages: 'auto' } });
    expect(errors).toEqual([]);
    expect(get(config, 'pipeline.stages')).toBe('auto');
  });
});

describe('support', () => {
  test.each<[extra: Section, path: string]>([
    [{ graph_harvesting: true }, 'graph_harvesting'],
    [{ compile: { deepcompile: true } }, 'compile'],
    [{ compile: { disable: false, backend: 'inductor' } }, 'compile'],
    [
      { activation_checkpointing: { contiguous_memory_optimization: true } },
      'activation_checkpointing.contiguous_memory_optimization',
    ],
    [
      zero({ stage: 2, offload_param: { device: 'cpu', pin_memory: true } }),
      'zero_optimization.offload_param',
    ],
    [{ aio: { queue_depth: 9 } }, 'aio.queue_depth'],
    [{ aio: { use_gds: true } }, 'aio.use_gds'],
    [
      zero({ stage: 2, offload_optimizer: { device: 'cpu', pipeline_read: true } }),
      'zero_optimization.offload_optimizer.pipeline_read',
    ],
  ])('%j has no effect, and one notice says so', (extra, path) => {
    const { errors, notices } = check(extra);
    expect(errors).toEqual([]);
    expect(notices).toEqual([expect.objectContaining({ kind: 'no-effect', path })]);
  });

  test.each<[extra: Section, path: string]>([
    [{ prescale_gradients: true }, 'prescale_gradients'],
    [{ gradient_predivide_factor: 2 }, 'gradient_predivide_factor'],
    [{ gradient_allreduce_op: 'sum' }, 'gradient_allreduce_op'],
    [{ communication_data_type: 'fp32' }, 'communication_data_type'],
    [zero({ stage: 0, overlap_comm: true }), 'zero_optimization.overlap_comm'],
    [zero({ stage: 1, reduce_scatter: false }), 'zero_optimization.reduce_scatter'],
    [zero({ stage: 0, reduce_bucket_size: 9 }), 'zero_optimization.reduce_bucket_size'],
    [zero({ stage: 2, allgather_bucket_size: 8 }), 'zero_optimization.allgather_bucket_size'],
    ...[
      'prefetch_bucket_size',
      'param_persistence_threshold',
      'model_persistence_threshold',
      'max_live_parameters',
      'max_reuse_distance',
    ].map((key): [Section, string] => [
      zero({ stage: 3, [`stage3_${key}`]: 7 }),
      `zero_optimization.stage3_${key}`,
    ]),
  ])('%j has an effect on several ranks only', (extra, path) => {
    const { errors, notices } = check(extra);
    expect(errors).toEqual([]);
    expect(notices).toEqual([expect.objectContaining({ kind: 'no-effect', path })]);
    expect(check(extra, {}, 2)).toMatchObject({ errors: [], notices: [] });
  });

  test.each(['cpu', 'nvme'])(
    'gathers have an effect on one rank with weights on "%s"',
    (device) => {
      const offload_param = { device, ...(device === 'nvme' && { nvme_path: '/local_nvme' }) };
      const extra = zero({ stage: 3, stage3_prefetch_bucket_size: 7, offload_param });
      expect(check(extra)).toMatchObject({ errors: [], notices: [] });
    },
  );

  test.each([1, 2])('sub_group_size has an effect on an update on the host, %d ranks', (ranks) => {
    const home = { offload_optimizer: { device: 'cpu' } };
    for (const stage of [1, 2, 3]) {
      const resident = check(zero({ stage, sub_group_size: 9 }), {}, ranks);
      const path = 'zero_optimization.sub_group_size';
      expect(resident.notices).toEqual([expect.objectContaining({ kind: 'no-effect', path })]);
      const offloaded = check(zero({ stage, sub_group_size: 9, ...home }), {}, ranks);
      expect(offloaded).toMatchObject({ errors: [], notices: [] });
    }
  });

  test.each<[extra: Section, text: string]>([
    [zero({ stage: 0, reduce_scatter: false }), 'it acts at stage 1, 2 or 3, and this is 0'],
    [zero({ stage: 3, allgather_bucket_size: 8 }), 'it acts at stage 1 or 2, and this is 3'],
    [zero({ stage: 2, stage3_max_reuse_distance: 8 }), 'it acts at stage 3, and this is 2'],
    [zero({ prefetch_bucket_size: 8 }), 'it acts at stage 3, and this is 0'],
    [zero({ contiguous_gradients: false }), 'gradients always lie in flat buffers'],
    [
      { sequence_parallel_size: 2, seq_parallel_communication_data_type: 'fp32' },
      'sequence ranks reduce gradients together with other ranks, in communication_data_type',
    ],
  ])('%j has no effect on two ranks either', (extra, text) => {
    const { errors, notices } = check(extra, {}, 2);
    expect(errors).toEqual([]);
    expect(notices).toEqual([
      expect.objectContaining({ kind: 'no-effect', text: `has no effect: ${text}.` }),
    ]);
  });

  const loco = zero({ zeropp_loco_param: { err_beta: 0.5 } });
  const amsgrad = { optimizer: { type: 'OneBitAdam', params: { amsgrad: true } } };
  test.each<[extra: Section, path: string, expected: RegExp]>([
    [{ amp: { enabled: true } }, 'amp', /^"enabled": false$/],
    [loco, 'zero_optimization.zeropp_loco_param', /^no such section$/],
    [
      zero({ stage: 2, zenflow: { topk_ratio: 0.2 } }),
      ...(['zero_optimization.zenflow', /^no such section$/] as const),
    ],
    [{ optimizer: { type: 'MuAdam', params: { lr: 1e-3 } } }, 'optimizer.type', /^another value$/],
    [amsgrad, 'optimizer.params.amsgrad', /^false, the default$/],
  ])('%j is not supported yet', (extra, path, words) => {
    const { errors } = check(extra);
    const expected = expect.stringMatching(words);
    expect(errors).toEqual([expect.objectContaining({ code: 'DS_CONFIG', path, expected })]);
    expect(errors[0]?.hint).toContain('not supported yet');
  });

  test.each<[extra: Section, path: string]>([
    [{ wandb: { enabled: true } }, 'wandb'],
    [{ comet: { enabled: true } }, 'comet'],
    [
      { activation_checkpointing: { partition_activations: true } },
      'activation_checkpointing.partition_activations',
    ],
    [{ checkpoint: { use_node_local_storage: true } }, 'checkpoint.use_node_local_storage'],
  ])('%j is accepted with a notice', (extra, path) => {
    const { errors, notices } = check(extra);
    expect(errors).toEqual([]);
    expect(notices).toEqual([expect.objectContaining({ kind: 'no-effect', path })]);
  });

  test.each<[extra: Section]>([
    [{ wandb: { enabled: false, project: 'mine' } }],
    [{ wandb: { project: 'mine' } }],
    [{ wandb: null, comet: {}, sparse_attention: false, elasticity: { enabled: false } }],
    [{ fp16: { auto_cast: false }, amp: { enabled: false, opt_level: 'O1' } }],
    [zero({ mics_shard_size: -1, zenflow: null, zeropp_loco_param: null })],
    [zero({ offload_param: { device: 'none', buffer_count: 9 } })],
    [zero({ stage3_max_live_parameters: 1e9, overlap_comm: false, sub_group_size: 1e9 })],
    [{ comms_logger: { enabled: false }, compile: { deepcompile: false } }],
  ])('%j is off or the default, so there is no notice', (extra) => {
    const { errors, notices } = check(extra);
    expect(errors).toEqual([]);
    expect(notices).toEqual([]);
  });
});
