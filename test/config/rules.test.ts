// Tests each rule across keys: a configuration that breaks it, the key and fix in the error, and
// the closest valid configuration.
import { checkConfig, type DsConfig, resolveConfig } from '../../lib/config/index.js';
import { violations } from '../../lib/config/rules.js';
import type { Section } from '../../lib/config/schema.js';
import { BASE, curriculum, onDisk, values, zero } from './rule-values.js';

const onHost = { offload_optimizer: { device: 'cpu' } };

test.each<[rule: string, wrong: Section, path: string, hint: RegExp, right: Section]>([
  [
    'one precision',
    { fp16: { enabled: true }, bf16: { enabled: true } },
    'fp16.enabled',
    /Set one of fp16.enabled and bf16.enabled to false/,
    { fp16: { enabled: true } },
  ],
  [
    'an experiment is timed for a step at least',
    { autotuning: { enabled: true, start_profile_step: 4, end_profile_step: 3 } },
    'autotuning.end_profile_step',
    /Raise end_profile_step/,
    { autotuning: { enabled: true, start_profile_step: 3, end_profile_step: 3 } },
  ],
  [
    'an experiment that describes its model names a file',
    { autotuning: { enabled: true, model_info: { profile: true } } },
    'autotuning.model_info_path',
    /leave them out, and start ds --autotuning tune/,
    { autotuning: { enabled: true, model_info: { profile: true }, model_info_path: 'a.json' } },
  ],
  [
    'the first scale is at least the smallest',
    { fp16: { enabled: true, initial_scale_power: 2, min_loss_scale: 8 } },
    'fp16.initial_scale_power',
    /Raise initial_scale_power/,
    { fp16: { enabled: true, initial_scale_power: 3, min_loss_scale: 8 } },
  ],
  [
    '1-bit optimizers know no ZeRO',
    { optimizer: { type: 'OneBitAdam' }, ...zero({ stage: 1 }) },
    'zero_optimization.stage',
    /Set it to 0/,
    { optimizer: { type: 'OneBitAdam' }, ...zero({ stage: 0 }) },
  ],
  [
    'LAMB scales dynamically',
    { optimizer: { type: 'Lamb' }, fp16: { enabled: true, loss_scale: 128 } },
    'fp16.loss_scale',
    /Set fp16.loss_scale to 0/,
    { optimizer: { type: 'Lamb' }, fp16: { enabled: true, loss_scale: 0 } },
  ],
  [
    'LAMB without fp16 has no scale',
    { optimizer: { type: 'FusedLamb' }, fp16: { enabled: true, loss_scale: 1 } },
    'fp16.loss_scale',
    /or choose another optimizer/,
    { optimizer: { type: 'FusedLamb' }, fp16: { enabled: false, loss_scale: 1 } },
  ],
  [
    'data_types agrees with bf16',
    { bf16: { enabled: true }, data_types: { param_dtype: 'fp16' } },
    'data_types.param_dtype',
    /change fp16.enabled and bf16.enabled/,
    { bf16: { enabled: true }, data_types: { param_dtype: 'bf16' } },
  ],
  [
    'data_types agrees with neither',
    { data_types: { param_dtype: 'bf16' } },
    'data_types.param_dtype',
    /Remove it/,
    { data_types: { param_dtype: 'fp32' } },
  ],
  [
    'gradients are summed in the dtype of the weights, or in fp32',
    { bf16: { enabled: true }, data_types: { grad_accum_dtype: 'fp16' } },
    'data_types.grad_accum_dtype',
    /Set it to "fp32"/,
    { bf16: { enabled: true }, data_types: { grad_accum_dtype: 'bf16' } },
  ],
  [
    'fp32 gradients are not summed in bf16',
    { data_types: { grad_accum_dtype: 'bf16' } },
    'data_types.grad_accum_dtype',
    /or remove it/,
    { fp16: { enabled: true }, data_types: { grad_accum_dtype: 'fp32' } },
  ],
  [
    'speculation has one dtype',
    {
      bf16: { enabled: true },
      data_types: { grad_accum_dtype: 'fp32' },
      ...zero({ stage: 1, offload_optimizer: { device: 'cpu', super_offload: true } }),
    },
    'zero_optimization.offload_optimizer.super_offload',
    /Set super_offload to null/,
    {
      bf16: { enabled: true },
      data_types: { grad_accum_dtype: 'bf16' },
      ...zero({ stage: 1, offload_optimizer: { device: 'cpu', super_offload: true } }),
    },
  ],
  [
    'bf16 moments are those of Adam',
    {
      bf16: { bf16_optimizer_states: true },
      optimizer: { type: 'Lion', params: { lr: 1e-4 } },
    },
    'bf16.bf16_optimizer_states',
    /optimizer.type to "AdamW" or "Adam"/,
    {
      bf16: { bf16_optimizer_states: true },
      optimizer: { type: 'DeepSpeedCPUAdam', params: { lr: 1e-4 } },
    },
  ],
  [
    'offload needs a stage',
    zero({ stage: 0, ...onHost }),
    'zero_optimization.stage',
    /stage to 2/,
    zero({ stage: 1, ...onHost }),
  ],
  [
    'super_offload needs offload',
    zero({ stage: 2, offload_optimizer: { super_offload: true } }),
    'zero_optimization.offload_optimizer.super_offload',
    /device to "cpu"/,
    zero({ stage: 2, offload_optimizer: { super_offload: true, device: 'cpu' } }),
  ],
  [
    'state on disk is not tried out',
    zero({ stage: 2, offload_optimizer: { ...onDisk, super_offload: true } }),
    'zero_optimization.offload_optimizer.super_offload',
    /Leave super_offload out/,
    zero({ stage: 2, offload_optimizer: onDisk }),
  ],
  [
    'a disk is named',
    zero({ stage: 2, offload_optimizer: { device: 'nvme' } }),
    'zero_optimization.offload_optimizer.nvme_path',
    /ds io FOLDER/,
    zero({ stage: 2, offload_optimizer: onDisk }),
  ],
  [
    'a disk of weights is named',
    zero({ stage: 3, offload_param: { device: 'nvme' } }),
    'zero_optimization.offload_param.nvme_path',
    /ds io FOLDER/,
    zero({ stage: 2, offload_param: { device: 'nvme' } }),
  ],
  [
    'weights on disk come through a slot',
    zero({ stage: 3, offload_param: { ...onDisk, buffer_count: 0 } }),
    'zero_optimization.offload_param.buffer_count',
    /Leave it out/,
    zero({ stage: 3, offload_param: onDisk }),
  ],
  [
    'state on disk is updated in a slot',
    zero({ stage: 2, offload_optimizer: { ...onDisk, buffer_count: 0 } }),
    'zero_optimization.offload_optimizer.buffer_count',
    /Leave it out/,
    zero({ stage: 2, offload_optimizer: { ...onDisk, buffer_count: 1 } }),
  ],
  [
    'state on disk is updated by the host',
    zero({ stage: 2, offload_optimizer: { ...onDisk, gpu_share: 0.5 } }),
    'zero_optimization.offload_optimizer.gpu_share',
    /Leave it out/,
    zero({ stage: 2, offload_optimizer: { ...onDisk, gpu_share: 0 } }),
  ],
  [
    'offloaded weights are updated on the host alone',
    zero({
      stage: 3,
      offload_param: { device: 'cpu' },
      offload_optimizer: { device: 'cpu', ratio: 0.5 },
    }),
    'zero_optimization.offload_optimizer.ratio',
    /ratio to 1/,
    zero({ stage: 3, offload_optimizer: { device: 'cpu', ratio: 0.5 } }),
  ],
  [
    'weights on a disk are not tried out',
    zero({
      stage: 3,
      offload_param: { device: 'nvme', nvme_path: '/nvme' },
      offload_optimizer: { device: 'cpu', super_offload: true },
    }),
    'zero_optimization.offload_optimizer.super_offload',
    /Leave super_offload out/,
    zero({
      stage: 3,
      offload_param: { device: 'cpu' },
      offload_optimizer: { device: 'cpu', super_offload: true },
    }),
  ],
  [
    'gather buckets are even',
    zero({ stage: 2, allgather_bucket_size: 1001 }),
    'zero_optimization.allgather_bucket_size',
    /Set it to 1002/,
    zero({ stage: 2, allgather_bucket_size: 1002 }),
  ],
  [
    'no prescale with reduce-scatter',
    { prescale_gradients: true, ...zero({ stage: 2 }) },
    'prescale_gradients',
    /reduce_scatter to false/,
    { prescale_gradients: true, ...zero({ stage: 2, reduce_scatter: false }) },
  ],
  [
    'no predivide with reduce-scatter',
    { gradient_predivide_factor: 2, ...zero({ stage: 2 }) },
    'gradient_predivide_factor',
    /gradient_predivide_factor to 1/,
    { gradient_predivide_factor: 2, ...zero({ stage: 3 }) },
  ],
  [
    'stage 3 averages',
    { gradient_allreduce_op: 'sum', ...zero({ stage: 3 }) },
    'gradient_allreduce_op',
    /to "mean"/,
    { gradient_allreduce_op: 'sum', ...zero({ stage: 2 }) },
  ],
  [
    'unmanaged accumulation does not overlap',
    { managed_gradient_accumulation: false, ...zero({ stage: 1, overlap_comm: true }) },
    'managed_gradient_accumulation',
    /overlap_comm to false/,
    { managed_gradient_accumulation: false, ...zero({ stage: 2, overlap_comm: true }) },
  ],
  [
    'a curriculum has a beginning',
    curriculum({ min_difficulty: null }),
    'curriculum_learning.min_difficulty',
    /disable the section/,
    { curriculum_learning: { min_difficulty: null } },
  ],
  [
    'a curriculum has an end',
    curriculum({ max_difficulty: null }),
    'curriculum_learning.max_difficulty',
    /disable the section/,
    curriculum({}),
  ],
  [
    'a curriculum has a schedule',
    curriculum({ schedule_type: null }),
    'curriculum_learning.schedule_type',
    /disable the section/,
    curriculum({}),
  ],
  [
    'a linear schedule has a length',
    curriculum({}, { difficulty_step: 8 }),
    'curriculum_learning.schedule_config.total_curriculum_step',
    /"fixed_linear" reads total_curriculum_step, difficulty_step/,
    curriculum({}),
  ],
  [
    'a linear schedule has a step',
    curriculum({}, { total_curriculum_step: 30 }),
    'curriculum_learning.schedule_config.difficulty_step',
    /"fixed_linear" reads/,
    curriculum({}),
  ],
  [
    'a root has a degree',
    curriculum({ schedule_type: 'fixed_root' }),
    'curriculum_learning.schedule_config.root_degree',
    /"fixed_root" reads/,
    curriculum(
      { schedule_type: 'fixed_root' },
      { total_curriculum_step: 30, difficulty_step: 8, root_degree: 2 },
    ),
  ],
  [
    'a list has difficulties',
    curriculum({ schedule_type: 'fixed_discrete' }, { max_step: [5] }),
    'curriculum_learning.schedule_config.difficulty',
    /"fixed_discrete" reads difficulty, max_step/,
    curriculum({ schedule_type: 'fixed_discrete' }, { difficulty: [8, 16], max_step: [5] }),
  ],
  [
    'a list has steps',
    curriculum({ schedule_type: 'fixed_discrete' }, { difficulty: [8, 16] }),
    'curriculum_learning.schedule_config.max_step',
    /"fixed_discrete" reads/,
    curriculum({ schedule_type: 'custom' }, {}),
  ],
  [
    'the last difficulty has no end',
    curriculum({ schedule_type: 'fixed_discrete' }, { difficulty: [8, 16], max_step: [5, 9] }),
    'curriculum_learning.schedule_config.max_step',
    /lasts until the end/,
    curriculum({ schedule_type: 'fixed_discrete' }, { difficulty: [8, 16, 9], max_step: [5, 9] }),
  ],
  [
    'every difficulty comes',
    curriculum({ schedule_type: 'fixed_discrete' }, { difficulty: [8, 16, 9], max_step: [5, 5] }),
    'curriculum_learning.schedule_config.max_step',
    /Sort the steps/,
    curriculum({ schedule_type: 'fixed_discrete' }, { difficulty: [8, 16, 9], max_step: [5, 6] }),
  ],
  [
    'difficulties grow',
    curriculum({ max_difficulty: 7 }),
    'curriculum_learning.max_difficulty',
    /Raise max_difficulty/,
    curriculum({ max_difficulty: 8 }),
  ],
  [
    'the first step has tokens',
    curriculum({ min_difficulty: 7 }),
    'curriculum_learning.min_difficulty',
    /multiple of difficulty_step/,
    curriculum({ min_difficulty: 8 }),
  ],
  [
    'ranks that share tokens have as many each: while lengths grow',
    { ...curriculum({ max_difficulty: 120 }), sequence_parallel_size: 3 },
    'curriculum_learning.schedule_config.difficulty_step',
    /sequence_parallel_size/,
    { ...curriculum({ max_difficulty: 120 }), sequence_parallel_size: 4 },
  ],
  [
    'ranks that share tokens have as many each: in the end',
    { ...curriculum({ max_difficulty: 130 }), sequence_parallel_size: 4 },
    'curriculum_learning.max_difficulty',
    /sequence_parallel_size/,
    { ...curriculum({ max_difficulty: 130 }), sequence_parallel_size: 2 },
  ],
  [
    'ranks that share tokens have as many each: in a list',
    {
      ...curriculum({ schedule_type: 'fixed_discrete' }, { difficulty: [8, 18], max_step: [5] }),
      sequence_parallel_size: 4,
    },
    'curriculum_learning.schedule_config.difficulty.1',
    /sequence_parallel_size/,
    {
      ...curriculum({ schedule_type: 'fixed_discrete' }, { difficulty: [8, 20], max_step: [5] }),
      sequence_parallel_size: 4,
    },
  ],
  [
    'AdamW is decoupled',
    { optimizer: { type: 'AdamW', params: { adam_w_mode: false } } },
    'optimizer.params.adam_w_mode',
    /type to "Adam"/,
    { optimizer: { type: 'Adam', params: { adam_w_mode: false } } },
  ],
])('%s', (_, wrong, path, hint, right) => {
  const found = violations(values(wrong));
  expect(found.map((violation) => violation.path.join('.'))).toEqual([path]);
  expect(found[0]?.hint).toMatch(hint);
  expect(violations(values(right))).toEqual([]);
});

test('the error of a rule has the position in the file', () => {
  const config = { ...BASE, prescale_gradients: true, zero_optimization: { stage: 2 } } as DsConfig;
  const text = Buffer.from(JSON.stringify(config, null, 2)).toString('base64');
  expect(() => resolveConfig(text, { worldSize: 1 })).toThrow(
    /^base64:\d+:3: prescale_gradients: expected false at stage 2/,
  );
});

test.each(['WarmupDecayLR', 'WarmupCosineLR'] as const)(
  '%s may end during its warm-up, with a notice',
  (type) => {
    const noticesAt = (total_num_steps: number): readonly string[] => {
      const config = { ...BASE, scheduler: { type, params: { total_num_steps } } } as DsConfig;
      return resolveConfig(config, { worldSize: 1 }).notices;
    };
    expect(noticesAt(1000)).toEqual([]);
    expect(noticesAt(10)).toEqual([
      expect.stringMatching(/total_num_steps is 10, and warmup_num_steps is 1000/),
    ]);
  },
);

test.each([
  [{}, { total_curriculum_step: 30, difficulty_step: 8 }, []],
  [{}, { total_curriculum_step: 30, difficulty_step: 4 }, [/difficulty_step is 4: .* of 8 suit/]],
  [
    { min_difficulty: 10 },
    { total_curriculum_step: 30, difficulty_step: 8 },
    [/min_difficulty is 10, no multiple of difficulty_step, 8: .* to 8 at least/],
  ],
  // A decay that starts at the end is not rounded.
  [
    { min_difficulty: 12, max_difficulty: 12 },
    { total_curriculum_step: 30, difficulty_step: 8 },
    [],
  ],
  [
    {},
    { total_curriculum_step: 30, difficulty_step: 8, root_degree: 2, max_step: [3] },
    [/schedule_config is that of "fixed_linear", which does not read root_degree, max_step/],
  ],
])('a curriculum with %j and %j is advised on', (section, schedule, expected) => {
  const config = { ...BASE, ...curriculum(section, schedule) } as DsConfig;
  const { notices } = resolveConfig(config, { worldSize: 1 });
  expect(notices).toEqual(expected.map((pattern) => expect.stringMatching(pattern)));
});

test.each([
  ['curriculum_type', 'vocab'],
  ['min_difficulty', 0],
  ['max_difficulty', 8.5],
  ['schedule_type', 'linear'],
  ['schedule_config.total_curriculum_step', 0],
  ['schedule_config.difficulty_step', -8],
  ['schedule_config.root_degree', 0],
  ['schedule_config.difficulty', [8]],
  ['schedule_config.max_step', [0]],
])('a curriculum refuses %s = %j', (path, value) => {
  const wrong = structuredClone(curriculum({})) as Section;
  const keys = ['curriculum_learning', ...path.split('.')];
  const last = keys.pop() as string;
  const inner = keys.reduce((part, key) => part[key] as Section, wrong);
  inner[last] = value;
  const { errors } = checkConfig({ ...BASE, ...wrong } as DsConfig, { worldSize: 1 });
  expect(errors.map((error) => error.path)).toEqual([
    expect.stringContaining(`curriculum_learning.${path}`),
  ]);
});

test.each([
  [0, false],
  [2, false],
  [3, true],
])('overlap_comm follows from stage %d', (stage, expected) => {
  const config = { ...BASE, zero_optimization: { stage } } as DsConfig;
  const { zero_optimization } = resolveConfig(config, { worldSize: 1 });
  expect(zero_optimization.overlap_comm).toBe(expected);
});
