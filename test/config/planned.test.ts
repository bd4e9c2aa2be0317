// Tests "auto" values that the plan decides: the candidates, the fixed settings, and errors.
import {
  checkConfig,
  type DsConfig,
  plannedConfigs,
  resolveAuto,
  resolveConfig,
} from '../../lib/config/index.js';

type Zero = Exclude<DsConfig['zero_optimization'], boolean | undefined>;

const ONE = { worldSize: 1 };
const configWith = (zero: Zero, more: DsConfig = {}): DsConfig => ({
  train_micro_batch_size_per_gpu: 1,
  zero_optimization: zero,
  ...more,
});

function ways(zero: Zero, more: DsConfig = {}) {
  return plannedConfigs(configWith(zero, more), ONE)?.configs.map(
    ({ zero_optimization: one }) => one,
  );
}

/** The distinct settings of the candidates. */
const states = (zero: Zero, more: DsConfig = {}): string[] => [
  ...new Set(
    ways(zero, more)?.map(
      ({ stage, offload_optimizer: state, offload_param: param }) =>
        `${stage} ${state.device} ${state.ratio} ${param.device}`,
    ),
  ),
];

test('values other than "auto" are unchanged', () => {
  expect(plannedConfigs(configWith({ stage: 2 }), ONE)).toBeNull();
  expect(states({ stage: 'auto' })).toEqual([
    '0 none 1 none',
    '1 none 1 none',
    '2 none 1 none',
    '3 none 1 none',
  ]);
  expect(states({ stage: 2, offload_optimizer: { device: 'auto' } })).toEqual([
    '2 none 1 none',
    '2 cpu 1 none',
  ]);
  expect(states({ stage: 1, offload_optimizer: { device: 'auto', ratio: 0.5 } })).toEqual([
    '1 none 0.5 none',
    '1 cpu 0.5 none',
  ]);
  expect(states({ stage: 1, offload_optimizer: { device: 'cpu', ratio: 'auto' } })).toEqual(
    ['0.25', '0.5', '0.75', '1'].map((ratio) => `1 cpu ${ratio} none`),
  );
  expect(states({ stage: 3, offload_param: 'auto' })).toEqual(['3 none 1 none', '3 none 1 cpu']);
  expect(states({ stage: 2, offload_param: { device: 'auto' } })).toEqual(['2 none 1 none']);
});

test('a section with the value "auto" sets "auto" for its keys', () => {
  const all = states({ stage: 'auto', offload_optimizer: 'auto', offload_param: 'auto' });
  expect(all).toContain('0 none 1 none');
  expect(all).toContain('2 cpu 0.25 none');
  expect(all).toContain('3 cpu 1 cpu');
  // Offloaded weights require fully offloaded state, and stage 0 has nothing to offload.
  expect(all.filter((text) => /^0 cpu|cpu 0.* cpu$|^3 none 1 cpu/.test(text))).toEqual([]);
});

test('the plan considers a disk only if nvme_path is given', () => {
  const zero = { stage: 2, offload_optimizer: { device: 'auto', nvme_path: '/fast' } } as const;
  expect(states(zero)).toContain('2 nvme 1 none');
});

test('the plan may turn off open settings of offloaded state, but keeps given ones', () => {
  const switches = (more: object) => [
    ...new Set(
      ways({ stage: 1, offload_optimizer: { device: 'auto', ...more } })
        ?.filter(({ offload_optimizer: { device } }) => device === 'cpu')
        .map(({ offload_optimizer: state }) => `${state.super_offload} ${state.gpu_share}`),
    ),
  ];
  expect(switches({})).toEqual(['null null', 'null 0', 'false null', 'false 0']);
  expect(switches({ gpu_share: 0.3 })).toEqual(['null 0.3', 'false 0.3']);
  expect(switches({ super_offload: false })).toEqual(['false null', 'false 0']);
});

test('other keys exclude choices of the plan', () => {
  const summed: DsConfig = { gradient_allreduce_op: 'sum' };
  expect(states({ stage: 'auto' }, summed).map((state) => state[0])).toEqual(['0', '1', '2']);
  const oneBit: DsConfig = { optimizer: { type: 'OneBitAdam', params: { lr: 1e-3 } } };
  expect(states({ stage: 'auto', offload_optimizer: 'auto' }, oneBit)).toEqual(['0 none 1 none']);
  expect(
    states({ stage: 'auto', offload_optimizer: { device: 'cpu' } }).map((state) => state[0]),
  ).toEqual(['1', '2', '3']);
  expect(() => ways({ stage: 'auto', offload_optimizer: { device: 'nvme' } })).toThrow(
    expect.objectContaining({ op: 'zero_optimization.offload_optimizer.nvme_path' }),
  );
});

test('keys that depend on the stage follow the choice', () => {
  const zero: Zero = { stage: 'auto', stage3_prefetch_bucket_size: 'auto' };
  const auto = { model: { hiddenSize: 64 } };
  const { configs } = plannedConfigs(configWith(zero), { ...ONE, auto }) ?? { configs: [] };
  const found = configs.map(({ zero_optimization: one }) => [
    one.stage,
    one.stage3_prefetch_bucket_size,
    one.overlap_comm,
  ]);
  expect(found).toEqual([
    [0, 5e7, false],
    [1, 5e7, false],
    [2, 5e7, false],
    [3, Math.floor(0.9 * 64 * 64), true],
  ]);
  // Until then it stays "auto".
  expect(resolveAuto(configWith({ ...zero, offload_optimizer: 'auto' }), auto)).toMatchObject({
    zero_optimization: {
      ...zero,
      offload_optimizer: { device: 'auto', ratio: 'auto' },
    },
  });
});

test('without a model there is no plan: the defaults apply, as in DeepSpeed', () => {
  const zero: Zero = {
    stage3_prefetch_bucket_size: 'auto',
    stage: 'auto',
    offload_optimizer: 'auto',
  };
  const { config, notices } = checkConfig(configWith(zero), ONE);
  expect(config?.zero_optimization).toMatchObject({
    stage: 0,
    stage3_prefetch_bucket_size: 5e7,
    offload_optimizer: { device: 'none', ratio: 1 },
  });
  expect(notices.map(({ path }) => path).toSorted()).toEqual([
    'zero_optimization.offload_optimizer.device',
    'zero_optimization.offload_optimizer.ratio',
    'zero_optimization.stage',
    'zero_optimization.stage3_prefetch_bucket_size',
  ]);
  const { notices: lines } = resolveConfig(configWith({ stage: 'auto' }), ONE);
  expect(lines).toEqual([
    'zero_optimization.stage is "auto": the default applies, because only initialize() asks the plan.',
  ]);
});

test('keys that the plan fills are listed, and the other keys are checked', () => {
  const zero: Zero = {
    stage: 'auto',
    offload_optimizer: 'auto',
    round_robin_gradients: true,
    stage3_max_live_parameters: 7,
    stage3_prefetch_bucket_size: 7,
  };
  const report = checkConfig(configWith(zero), { worldSize: 2, autoLater: true });
  expect(report.errors).toEqual([]);
  expect([...(report.left ?? [])].toSorted()).toEqual([
    'zero_optimization.offload_optimizer.device',
    'zero_optimization.offload_optimizer.ratio',
    'zero_optimization.stage',
  ]);
  const texts = report.notices.map(({ path, text }) => `${path} ${text}`);
  // Keys of stage 3 may have an effect; the other one never does.
  expect(texts).toEqual([
    expect.stringMatching(/^zero_optimization\.round_robin_gradients has no effect/),
    'zero_optimization.stage is left to be filled by the plan of initialize().',
    'zero_optimization.offload_optimizer.device is left to be filled by the plan of initialize().',
    'zero_optimization.offload_optimizer.ratio is left to be filled by the plan of initialize().',
  ]);
  expect(report.config?.notices).toHaveLength(4);
  const wrong = checkConfig(configWith(zero, { gradient_clipping: -1 }), {
    ...ONE,
    autoLater: true,
  });
  expect(wrong.errors.map(({ path }) => path)).toEqual(['gradient_clipping']);
});
