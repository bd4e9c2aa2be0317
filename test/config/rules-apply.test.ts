// Tests where rules across keys act: not for sections that are off, nor for other stages.
import { violations } from '../../lib/config/rules.js';
import type { Section } from '../../lib/config/schema.js';
import { curriculum, onDisk, values, zero } from './rule-values.js';

const halfUpdated = { offload_optimizer: { device: 'cpu', ratio: 0.5 } };
const fixedLinear = (schedule: Section) =>
  curriculum({}, { total_curriculum_step: 30, difficulty_step: 8, ...schedule });

test.each<[what: string, config: Section]>([
  [
    'weights are offloaded at stage 3',
    zero({ stage: 2, offload_param: { device: 'cpu' }, ...halfUpdated }),
  ],
  [
    'weights are on a disk at stage 3',
    zero({
      stage: 2,
      offload_param: onDisk,
      offload_optimizer: { device: 'cpu', super_offload: true },
    }),
  ],
  [
    'copies within few ranks are on',
    zero({ stage: 2, zero_hpz_partition_size: 1, mics_shard_size: -1 }),
  ],
  ['the schedule is a list', fixedLinear({ difficulty: [8, 16], max_step: [5, 9] })],
  [
    'an experiment runs',
    { autotuning: { start_profile_step: 4, end_profile_step: 3, results_dir: '' } },
  ],
  ['an experiment runs at all', { autotuning: { model_info: { profile: true } } }],
  ['state is on a disk', zero({ stage: 2, offload_optimizer: { device: 'cpu', buffer_count: 0 } })],
])('a rule acts only where %s', (_, config) => {
  expect(violations(values(config))).toEqual([]);
});

test.each<[key: string, section: Section]>([
  ['zero_quantized_weights', { zero_quantized_weights: true }],
  ['zero_quantized_gradients', { zero_quantized_gradients: true }],
  ['zero_hpz_partition_size', { zero_hpz_partition_size: 2 }],
  ['mics_shard_size', { mics_shard_size: 1 }],
])('%s is of stage 3', (key, section) => {
  const [found] = violations(values(zero({ stage: 2, ...section })));
  expect(found).toMatchObject({ path: ['zero_optimization', 'stage'], expected: `3 with ${key}` });
  expect(violations(values(zero({ stage: 3, ...section })))).toEqual([]);
});

test.each<[config: object, expected: string]>([
  [{}, 'false without fp8'],
  [{ enabled: true, recipe: 'rowwise' }, 'false with "rowwise"'],
  [{ enabled: true, stage: 2 }, 'false at stage 2'],
  [{ enabled: true, zero_quantized_weights: true }, 'false with zero_quantized_weights'],
])('gathers in FP8 with %j are refused', (options, expected) => {
  const { enabled = false, recipe = 'tensorwise', ...more } = options as Record<string, never>;
  const of = (fp8: object, section: object) =>
    violations(values({ bf16: { enabled: true }, fp8, ...zero({ stage: 3, ...section }) }));
  const [found] = of({ enabled, recipe, all_gather: true }, more);
  expect(found).toMatchObject({ path: ['fp8', 'all_gather'], expected });
  expect(of({ enabled: true, all_gather: true }, {})).toEqual([]);
});
