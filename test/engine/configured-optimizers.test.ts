// Tests that each optimizer and schedule of the configuration gets the params of its section.
import { resolveConfig } from '../../lib/config/index.js';
import schema from '../../lib/config/schema.json';
import { findOptimizer } from '../../lib/engine/setup/optimizer.js';
import { buildSchedules, findSchedules } from '../../lib/engine/setup/schedule.js';
import { type DsConfig, nn, optim, seed } from '../../lib/index.js';
import { thrownBy } from '../support/refusal.js';

const typesOf = (section: string): string[] =>
  JSON.stringify(schema.properties[section as 'optimizer'])
    .split('"const":"')
    .slice(1)
    .map((rest) => rest.slice(0, rest.indexOf('"')));

function optimizerOf(type: string, params: object = {}, more: DsConfig = {}) {
  seed(1);
  const module = new nn.Linear(4, 4);
  const optimizer = { type, params: { lr: 0.01, ...params } } as DsConfig['optimizer'];
  const config = resolveConfig({ train_batch_size: 1, optimizer, ...more }, { worldSize: 1 });
  const job = { mesh: { size: () => 1 } } as never;
  return findOptimizer({ module, config, clients: {}, job, planned: null }, null);
}

// muP is not supported.
const types = typesOf('optimizer').filter((type) => !type.startsWith('Mu') || type === 'Muon');

test('there are optimizers', () => {
  expect(types.length).toBeGreaterThan(15);
});

test.each(types)('%s is built', (type) => {
  const optimizer = optimizerOf(type);
  expect(optimizer.groups.flatMap(({ params }) => params)).toHaveLength(2);
  for (const { lr } of optimizer.groups) expect(lr).toBe(0.01);
});

test('params have the names of options', () => {
  expect(optimizerOf('Adam', { adam_w_mode: false, weight_decay: 0.2 }).groups[0]).toMatchObject({
    weightDecay: 0.2,
  });
  expect(optimizerOf('Lamb', { max_coeff: 7 })).toMatchObject({ groups: [{ maxCoeff: 7 }] });
  const muon = optimizerOf('Muon', { muon_lr: 0.5, adam_lr: 0.25 });
  expect(muon.groups.map(({ lr }) => lr).sort()).toEqual([0.25, 0.5]);
  expect(optimizerOf('Adagrad', { lr_decay: 0.5 })).toMatchObject({ groups: [{ lrDecay: 0.5 }] });
});

test('bf16_optimizer_states reach Adam', () => {
  const state = (bf16: object) =>
    optimizerOf('Adam', {}, { bf16: { enabled: true, ...bf16 } }).declareState(0, [4]);
  expect(Object.values(state({})).map(({ dtype }) => dtype)).toEqual(['f32', 'f32']);
  const narrow = Object.values(state({ bf16_optimizer_states: true }));
  expect(narrow.map(({ dtype }) => dtype)).toEqual(['bf16', 'bf16']);
});

test('bf16_optimizer_states refuse an optimizer of the caller with wide state', () => {
  const optimizerWith = (bf16: object, fp32OptimizerStates: boolean) => {
    const module = new nn.Linear(4, 4);
    const optimizer = new optim.AdamW(module.parameters(), { lr: 0.01, fp32OptimizerStates });
    const section = { bf16: { enabled: true, ...bf16 } };
    const config = resolveConfig({ train_batch_size: 1, ...section }, { worldSize: 1 });
    const job = { mesh: { size: () => 1 } } as never;
    return findOptimizer({ module, config, clients: { optimizer }, job, planned: null }, null);
  };
  const narrow = { bf16_optimizer_states: true };
  expect(optimizerWith(narrow, false).groups).toHaveLength(1);
  expect(optimizerWith({}, true).groups).toHaveLength(1);
  expect(thrownBy(() => optimizerWith(narrow, true))).toMatchObject({
    code: 'DS_CONFIG',
    op: 'bf16.bf16_optimizer_states',
    got: 'AdamW with exp_avg in f32',
    hint: expect.stringContaining('fp32OptimizerStates: false'),
  });
});

test.each(typesOf('scheduler'))('the schedule %s is built', (type) => {
  const needed = { total_num_steps: 10, T_max: 5, T_0: 5, step_size: 3, gamma: 0.5 };
  const needs = { milestones: [2, 4], cycle_min_lr: 0.1, cycle_max_lr: 0.2, ...needed };
  const known = Object.entries(needs).filter(([key]) => paramsOf(type).includes(key));
  const scheduler = { type, params: Object.fromEntries(known) } as DsConfig['scheduler'];
  const resolved = resolveConfig({ train_batch_size: 1, scheduler }, { worldSize: 1 });
  const groups = new optim.AdamW(new nn.Linear(2, 2).parameters(), { lr: 0.01 }).groups;
  expect(buildSchedules(resolved.scheduler, groups).name).toBe(type);
});

/** The params of a schedule type in the schema. */
function paramsOf(type: string): string[] {
  const text = JSON.stringify(schema.properties.scheduler);
  const from = text.indexOf('#/$defs/', text.indexOf(`"const":"${type}"`)) + '#/$defs/'.length;
  const name = text.slice(from, text.indexOf('"', from)) as keyof typeof schema.$defs;
  return Object.keys((schema.$defs[name] as { properties: object }).properties);
}

const schedulerOf = (type: string, params: object) =>
  resolveConfig({ train_batch_size: 1, scheduler: { type, params } } as never, { worldSize: 1 })
    .scheduler;

test.each<[type: string, params: object, schedule: object]>([
  [
    'WarmupLR',
    { warmup_min_lr: 0.1, warmup_max_lr: 0.9, warmup_num_steps: 7, warmup_type: 'linear' },
    new optim.WarmupLr({ minLr: 0.1, maxLr: 0.9, warmupSteps: 7, warmupType: 'linear' }),
  ],
  [
    'WarmupLR',
    { warmup_min_lr: 0.1, warmup_max_lr: null, warmup_num_steps: 7, warmup_type: 'linear' },
    new optim.WarmupLr({ minLr: 0.1, maxLr: 0.5, warmupSteps: 7, warmupType: 'linear' }),
  ],
  [
    'WarmupDecayLR',
    { total_num_steps: 20, warmup_min_lr: 0.1, warmup_max_lr: 0.9, warmup_num_steps: 7 },
    new optim.WarmupDecayLr({ totalSteps: 20, minLr: 0.1, maxLr: 0.9, warmupSteps: 7 }),
  ],
  [
    'WarmupCosineLR',
    { total_num_steps: 20, warmup_num_steps: 7, warmup_min_ratio: 0.3, cos_min_ratio: 0.2 },
    new optim.WarmupCosineLr({
      baseLr: 0.5,
      totalSteps: 20,
      warmupSteps: 7,
      warmupMinRatio: 0.3,
      cosMinRatio: 0.2,
    }),
  ],
  [
    'OneCycle',
    {
      cycle_min_lr: 0.1,
      cycle_max_lr: 0.9,
      decay_lr_rate: 0.3,
      cycle_first_step_size: 7,
      cycle_second_step_size: 9,
      cycle_first_stair_count: 2,
      cycle_second_stair_count: 3,
      decay_step_size: 4,
      cycle_momentum: true,
      cycle_min_mom: 0.6,
      cycle_max_mom: 0.7,
      decay_mom_rate: 0.2,
    },
    new optim.OneCycle({
      minLr: 0.1,
      maxLr: 0.9,
      decayLrRate: 0.3,
      firstStepSize: 7,
      secondStepSize: 9,
      firstStairCount: 2,
      secondStairCount: 3,
      decayStepSize: 4,
      cycleMomentum: true,
      minMomentum: 0.6,
      maxMomentum: 0.7,
      decayMomentumRate: 0.2,
    }),
  ],
  [
    'LRRangeTest',
    {
      lr_range_test_min_lr: 0.1,
      lr_range_test_step_size: 7,
      lr_range_test_step_rate: 3,
      lr_range_test_staircase: true,
    },
    new optim.LrRangeTest({ minLr: 0.1, stepSize: 7, stepRate: 3, staircase: true }),
  ],
  [
    'CosineAnnealingLR',
    { T_max: 7, eta_min: 0.1 },
    new optim.CosineAnnealingLr({ baseLr: 0.5, halfPeriod: 7, minLr: 0.1 }),
  ],
  [
    'StepLR',
    { step_size: 7, gamma: 0.3 },
    new optim.StepLr({ baseLr: 0.5, stepSize: 7, gamma: 0.3 }),
  ],
  ['ExponentialLR', { gamma: 0.3 }, new optim.ExponentialLr({ baseLr: 0.5, gamma: 0.3 })],
  [
    'PolynomialLR',
    { total_iters: 7, power: 2 },
    new optim.PolynomialLr({ baseLr: 0.5, totalSteps: 7, power: 2 }),
  ],
  [
    'ConstantLR',
    { factor: 0.3, total_iters: 7 },
    new optim.ConstantLr({ baseLr: 0.5, factor: 0.3, steps: 7 }),
  ],
  [
    'MultiStepLR',
    { milestones: [3, 5], gamma: 0.3 },
    new optim.MultiStepLr({ baseLr: 0.5, milestones: [3, 5], gamma: 0.3 }),
  ],
  [
    'LinearLR',
    { start_factor: 0.2, end_factor: 0.8, total_iters: 7 },
    new optim.LinearLr({ baseLr: 0.5, startFactor: 0.2, endFactor: 0.8, steps: 7 }),
  ],
  [
    'CosineAnnealingWarmRestarts',
    { T_0: 7, T_mult: 2, eta_min: 0.1 },
    new optim.CosineAnnealingWarmRestarts({ baseLr: 0.5, firstPeriod: 7, growth: 2, minLr: 0.1 }),
  ],
  [
    'ReduceLROnPlateau',
    {
      mode: 'max',
      factor: 0.3,
      patience: 4,
      threshold: 0.2,
      threshold_mode: 'abs',
      cooldown: 3,
      min_lr: 0.1,
      eps: 0.01,
    },
    new optim.ReduceLrOnPlateau({
      baseLr: 0.5,
      mode: 'max',
      factor: 0.3,
      patience: 4,
      threshold: 0.2,
      thresholdMode: 'abs',
      cooldown: 3,
      minLr: 0.1,
      eps: 0.01,
    }),
  ],
])('%s gets its options by the names of DeepSpeed: %j', (type, params, schedule) => {
  const scheduler = schedulerOf(type, params);
  const { schedules } = buildSchedules(scheduler, [{ params: [], lr: 0.5, weightDecay: 0 }]);
  expect(schedules).toEqual([schedule]);
});

describe('settings of a schedule without effect', () => {
  const notices = (
    scheduler: object,
    more: { lrs?: number[]; rank?: number; own?: unknown } = {},
  ) => {
    const { lrs = [0.1, 0.2], rank = 0, own } = more;
    const optimizer = new optim.AdamW(
      lrs.map((lr) => ({ params: new nn.Linear(2, 2).parameters(), lr })),
      { lr: 0.1 },
    );
    const warn = jest.spyOn(process, 'emitWarning').mockImplementation(() => {});
    try {
      const config = resolveConfig({ train_batch_size: 1, scheduler } as never, { worldSize: 1 });
      const clients = own === undefined ? {} : { lrScheduler: own };
      findSchedules({ config, clients, job: { rank } } as never, optimizer);
      return warn.mock.calls.map(([text]) => String(text));
    } finally {
      warn.mockRestore();
    }
  };
  const warmup = (peak: unknown) => ({
    type: 'WarmupLR',
    params: { warmup_min_lr: 0, warmup_max_lr: peak, warmup_num_steps: 4 },
  });

  test('rates of groups that the schedule replaces are noted, once for all ranks', () => {
    const [text] = notices(warmup(0.5));
    expect(text).toContain('scheduler.params.warmup_max_lr is 0.5 for all parameter groups.');
    expect(text).toContain('of the groups, 0.1, 0.2, have no effect with WarmupLR');
    expect(notices(warmup(0.5), { rank: 1 })).toEqual([]);
    expect(notices(warmup(0.5), { lrs: [0.1, 0.1] })).toEqual([]);
    expect(notices(warmup([0.5, 0.25]))).toEqual([]);
    const localWarmupLr = new optim.WarmupLr({ maxLr: 0.5, warmupSteps: 4 });
    expect(notices(warmup(0.5), { own: localWarmupLr })).toEqual([]);
    const cycle = (cycle_momentum: boolean) => ({
      type: 'OneCycle',
      params: { cycle_min_lr: 0.1, cycle_max_lr: 0.6, cycle_momentum },
    });
    const range = { type: 'LRRangeTest', params: { lr_range_test_min_lr: 0.7 } };
    const decay = {
      type: 'WarmupDecayLR',
      params: { total_num_steps: 9, warmup_max_lr: 0.8, warmup_num_steps: 2 },
    };
    const keys = [cycle(false), range, decay].map((item) => {
      const [notice = '', ...others] = notices(item);
      expect(others).toEqual([]);
      return /^scheduler\.params\.(\S+) is (\S+) for all .* have no effect with (\S+)\./
        .exec(notice)
        ?.slice(1);
    });
    expect(keys).toEqual([
      ['cycle_max_lr', '0.6', 'OneCycle'],
      ['lr_range_test_min_lr', '0.7', 'LRRangeTest'],
      ['warmup_max_lr', '0.8', 'WarmupDecayLR'],
    ]);
    expect(notices({ type: 'ExponentialLR', params: { gamma: 0.5 } })).toEqual([]);
  });

  test('a list has one value for each group', () => {
    expect(thrownBy(() => notices(warmup([1, 2, 3])))).toMatchObject({
      code: 'DS_CONFIG',
      op: 'scheduler.params.warmup_max_lr',
      got: '3: [1,2,3]',
      expected: 'a number, or one for each parameter group: 2',
    });
  });

  test('schedules of the caller are one, or as many as groups', () => {
    const one = () => new optim.WarmupLr({ maxLr: 0.5, warmupSteps: 4 });
    expect(notices(warmup(0.5), { own: [one(), one()] })).toEqual([]);
    expect(notices(warmup(0.5), { own: () => one() })).toEqual([]);
    expect(thrownBy(() => notices(warmup(0.5), { own: [one()] }))).toMatchObject({
      code: 'DS_ARGUMENT',
      op: 'initialize lrScheduler',
      got: '1 schedules',
      expected: 'a schedule, or one for each of 2 groups',
    });
    expect(thrownBy(() => notices(warmup(0.5), { own: {} })).op).toMatch(/lrScheduler/);
  });
});
