// Tests the section data_efficiency.data_sampling: required keys, notices, and errors.
import { checkConfig, type DsConfig, resolveConfig } from '../../lib/config/index.js';

type Section = Record<string, unknown>;

const METRIC: Section = {
  index_to_sample_path: '/index/seqlen_index_to_sample_percentile_merged',
  index_to_metric_path: '/index/seqlen_index_to_metric',
  difficulty_type: 'percentile',
  clustering_type: 'schedule_based',
  min_difficulty: 1,
  max_difficulty: 100,
  schedule_type: 'fixed_root',
  schedule_config: { total_curriculum_step: 110, difficulty_step: 1, root_degree: 2 },
};

const samplingConfig = (section: Section, outer: Section = {}): DsConfig =>
  ({
    train_micro_batch_size_per_gpu: 2,
    data_efficiency: { enabled: true, data_sampling: { enabled: true, ...section }, ...outer },
  }) as DsConfig;

const metrics = (curriculum_metrics: Section | null, outer: Section = {}): DsConfig =>
  samplingConfig({ curriculum_learning: { enabled: true, curriculum_metrics } }, outer);

const metric = (more: Section): DsConfig => metrics({ m: { ...METRIC, ...more } });

const discrete = (difficulty: number[], max_step: number[]): Section => ({
  schedule_type: 'fixed_discrete',
  schedule_config: { difficulty, max_step },
});

test('data_sampling of DeepSpeed is accepted, with its defaults', () => {
  const section = {
    num_epochs: 1,
    num_workers: 0,
    curriculum_learning: {
      enabled: true,
      data_cluster_path: '/clusters',
      curriculum_metrics: { vocabularyrarity: METRIC },
    },
    dynamic_batching: { enabled: false, max_tokens: 5 },
  };
  const { config, errors } = checkConfig(samplingConfig(section), { worldSize: 1 });
  expect(errors).toEqual([]);
  expect(config?.notices).toEqual([
    expect.stringMatching(/data_cluster_path has no effect: every rank keeps these lists in mem/),
  ]);
  expect(config?.data_efficiency).toMatchObject({
    seed: 1234,
    data_sampling: {
      num_epochs: 1,
      pin_memory: false,
      curriculum_learning: { curriculum_metrics: { vocabularyrarity: METRIC } },
    },
  });
  const bare = resolveConfig(metrics({ m: { ...METRIC, difficulty_type: undefined } }), {
    worldSize: 1,
  });
  const { data_sampling: kept } = bare.data_efficiency;
  expect(kept).toMatchObject({ num_epochs: 1000, num_workers: 0, dynamic_batching: null });
  expect(kept.curriculum_learning.curriculum_metrics.m).toMatchObject({
    difficulty_type: 'value',
    clustering_type: 'schedule_based',
  });
});

const M = 'curriculum_metrics.m';

test.each<[what: string, config: DsConfig, path: string, message: RegExp]>([
  [
    'no metric',
    metrics({}),
    'curriculum_metrics',
    /at least one metric, because the curriculum is on/,
  ],
  ['no beginning', metric({ min_difficulty: null }), `${M}.min_difficulty`, /Set it/],
  ['no end', metric({ max_difficulty: null }), `${M}.max_difficulty`, /Set it/],
  ['no schedule', metric({ schedule_type: null }), `${M}.schedule_type`, /Set it/],
  [
    'no degree',
    metric({ schedule_config: { total_curriculum_step: 1, difficulty_step: 1 } }),
    `${M}.schedule_config.root_degree`,
    /"fixed_root" reads/,
  ],
  [
    'an end that is easier',
    metric({ min_difficulty: 101 }),
    `${M}.max_difficulty`,
    /at least min_difficulty, 101/,
  ],
  [
    'lists that do not fit',
    metric(discrete([1, 2], [3, 4])),
    `${M}.schedule_config.max_step`,
    /1 steps, one less/,
  ],
  [
    'difficulties that fall',
    metric(discrete([9, 5, 100], [3, 4])),
    `${M}.schedule_config.difficulty`,
    /rising order, got \[9, 5, 100\]. Sort the difficulties/,
  ],
  [
    'no index',
    metric({ index_to_sample_path: null }),
    `${M}.index_to_sample_path`,
    /data.analyze\(\) wrote; "percentile" reads it/,
  ],
  [
    'no values',
    metric({ index_to_metric_path: null, difficulty_type: 'value' }),
    `${M}.index_to_metric_path`,
    /"value" reads it/,
  ],
  [
    'an unknown type',
    metric({ difficulty_type: 'rank' }),
    `${M}.difficulty_type`,
    /"value", "percentile"/,
  ],
  [
    'an unknown clustering',
    metric({ clustering_type: 'none' }),
    `${M}.clustering_type`,
    /"single_cluster"/,
  ],
  ['no epoch', samplingConfig({ num_epochs: 0 }), 'data_sampling.num_epochs', /1/],
  [
    'dynamic batches',
    samplingConfig({ dynamic_batching: { enabled: true, max_tokens: 9 } }),
    'dynamic_batching',
    /not supported yet: a step has a fixed number of samples; text.TextDataset packs/,
  ],
])('%s is refused', (_, config, path, message) => {
  const { errors } = checkConfig(config, { worldSize: 1 });
  expect(errors.map((error) => error.path)).toEqual([expect.stringContaining(path)]);
  expect(errors[0]?.message).toMatch(message);
});

test.each<[what: string, config: DsConfig, wanted: RegExp[]]>([
  ['a plain metric', metric({}), []],
  [
    'one that leaves no sample out',
    metric({ clustering_type: 'single_cluster', index_to_sample_path: null }),
    [/m.clustering_type uses all samples: the loop reads difficulties\(\)/],
  ],
  [
    'a list that ends early',
    metric(discrete([10, 50], [4])),
    [/difficulty ends at 50 of max_difficulty, 100: harder samples are never drawn/],
  ],
  [
    'a key that nobody reads',
    metric({ schedule_type: 'fixed_linear' }),
    [/"fixed_linear", which does not read root_degree/],
  ],
  [
    'a beginning that is rounded',
    metric({
      min_difficulty: 5,
      schedule_config: { total_curriculum_step: 9, difficulty_step: 2, root_degree: 2 },
    }),
    [/min_difficulty is 5, no multiple of difficulty_step, 2: difficulties are rounded down, to 4/],
  ],
  [
    'a section that samples nothing',
    samplingConfig({}),
    [/data_sampling has no effect: its section curriculum_learning is off/],
  ],
  [
    'a seed that nobody reads',
    { ...samplingConfig({ enabled: false }, { seed: 5 }) },
    [/seed has no effect without data_sampling/],
  ],
  ['a seed', metrics({ m: METRIC }, { seed: 5 }), []],
  [
    'pinned memory',
    samplingConfig({ ...metrics({ m: METRIC }).data_efficiency?.data_sampling, pin_memory: true }),
    [/pin_memory has no effect: batches always/],
  ],
  [
    'a section that is off',
    samplingConfig({ enabled: false, curriculum_learning: { enabled: true } }),
    [],
  ],
])('%s: notices', (_, config, expected) => {
  const { notices } = resolveConfig(config, { worldSize: 1 });
  expect(notices).toEqual(expected.map((pattern) => expect.stringMatching(pattern)));
});
