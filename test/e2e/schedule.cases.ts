// Tests that OneCycle sets rate and betas of every update, and that skipped updates do not count.
import assert from 'node:assert/strict';
import {
  type DsConfig,
  type DsError,
  type Engine,
  initialize,
  type nn,
  type Tensor,
} from '../../lib/index.js';
import { OneCycle } from '../../lib/optim/index.js';
import type { Device } from '../../lib/runtime/device.js';
import { seed } from '../../lib/tensor/index.js';
import type { Case } from '../support/case.js';
import { tinyBatch, tinyConfig, tinyModel, trainTiny, weightBits } from './tiny-training.js';

const STEPS = 6;

type Params = Partial<Extract<DsConfig['scheduler'], { type: 'OneCycle' }>['params']>;

async function cycleEngine(device: Device, precision: 'fp32' | 'fp16', params: Params = {}) {
  seed(1234);
  const config: DsConfig = {
    ...tinyConfig({ precision, offload: false }),
    scheduler: {
      type: 'OneCycle',
      params: {
        cycle_min_lr: 1e-4,
        cycle_max_lr: 1e-2,
        cycle_first_step_size: 2,
        decay_step_size: 1,
        decay_lr_rate: 0.5,
        decay_mom_rate: -0.1,
        ...params,
      },
    },
  };
  const { engine } = await initialize({ model: tinyModel(), config, device });
  return engine;
}

function requireGroup(engine: Engine, applied: number): void {
  const schedule = engine.parts.schedules.schedules[0] as OneCycle;
  const [group] = engine.parts.optimizer.groups;
  assert.equal(group?.lr, schedule.lr(applied));
  assert.deepEqual(group?.betas, [schedule.momentum(applied), 0.99]);
}

async function drivesTheGroups(device: Device): Promise<void> {
  const engine = await cycleEngine(device, 'fp32');
  assert.ok(engine.parts.schedules.schedules[0] instanceof OneCycle);
  for (let step = 0; step < STEPS; ++step) {
    trainTiny(engine, step, step + 1);
    requireGroup(engine, step);
  }
  engine.destroy();
}

async function momentumReachesTheUpdate(device: Device): Promise<void> {
  const weights: Map<string, string>[] = [];
  for (const cycle_max_mom of [0.9, 0.95]) {
    const engine = await cycleEngine(device, 'fp32', { cycle_max_mom });
    trainTiny(engine, 0, STEPS);
    weights.push(weightBits(engine));
    engine.destroy();
  }
  assert.notDeepEqual(weights[0], weights[1]);
}

async function skippedStepsDoNotAdvance(device: Device): Promise<void> {
  const engine = await cycleEngine(device, 'fp16');
  for (let step = 0; step < 2 * STEPS; ++step) {
    const before = engine.globalSteps - engine.skippedSteps;
    trainTiny(engine, step, step + 1);
    requireGroup(engine, before);
  }
  assert.ok(engine.skippedSteps > 0);
  engine.destroy();
}

/**
 * Schedules with a list of two values for each rate, and the first and the last rate of each group.
 */
const LISTS: { scheduler: NonNullable<DsConfig['scheduler']>; rates: [number[], number[]] }[] = [
  {
    scheduler: {
      type: 'WarmupLR',
      params: {
        warmup_min_lr: [0.1, 0.2],
        warmup_max_lr: [0.3, 0.6],
        warmup_num_steps: 2,
        warmup_type: 'linear',
      },
    },
    rates: [
      [0.1, 0.2],
      [0.3, 0.6],
    ],
  },
  {
    scheduler: {
      type: 'OneCycle',
      params: { cycle_min_lr: [0.1, 0.2], cycle_max_lr: [0.4, 0.5], cycle_first_step_size: 4 },
    },
    rates: [
      [0.1, 0.2],
      [0.4, 0.5],
    ],
  },
  {
    scheduler: {
      type: 'LRRangeTest',
      params: { lr_range_test_min_lr: [0.1, 0.2], lr_range_test_step_size: 4 },
    },
    rates: [
      [0.1, 0.2],
      [0.2, 0.4],
    ],
  },
];

/** An engine with two groups: the first parameter, and the others. */
async function groupedEngine(device: Device, scheduler: DsConfig['scheduler']): Promise<Engine> {
  const model = tinyModel();
  const [first, ...rest] = model.parameters();
  const modelParameters = [{ params: [first as nn.Parameter] }, { params: rest }];
  const config = { ...tinyConfig({ precision: 'fp32', offload: false }), scheduler };
  return (await initialize({ model, config, device, modelParameters })).engine;
}

async function listsPerGroup(device: Device): Promise<void> {
  for (const { scheduler, rates } of LISTS) {
    const engine = await groupedEngine(device, scheduler);
    const { schedules } = engine.parts.schedules;
    rates.forEach((expected, i) => {
      const steps = i * 4;
      schedules.forEach((schedule, group) => {
        const difference = schedule.lr(steps) - (expected[group] as number);
        assert.ok(Math.abs(difference) < 1e-12, `${scheduler.type} ${group} at ${steps}`);
      });
    });
    engine.destroy();
  }
}

async function listOfAnotherLength(device: Device): Promise<void> {
  const params = { warmup_max_lr: [0.1, 0.2, 0.3] };
  await assert.rejects(groupedEngine(device, { type: 'WarmupLR', params }), (error: DsError) => {
    const { code, op, expected, got } = error;
    assert.deepEqual([code, op], ['DS_CONFIG', 'scheduler.params.warmup_max_lr']);
    assert.match(expected, /each parameter group: 2$/);
    assert.match(got, /^3: \[0\.1,0\.2,0\.3\]$/);
    return true;
  });
}

/** Notices of initialize() with groups of rates 1e-3 and 1e-5. */
async function noticesOf(
  scheduler: DsConfig['scheduler'],
  device: Device,
  more: DsConfig = {},
): Promise<string[]> {
  const model = tinyModel();
  const all = model.parameters();
  const modelParameters = [{ params: all.slice(0, 1) }, { params: all.slice(1), lr: 1e-5 }];
  const config = { ...tinyConfig({ precision: 'fp32', offload: false }), scheduler, ...more };
  const reported: string[] = [];
  const { emitWarning } = process;
  process.emitWarning = ((text: string) => void reported.push(text)) as typeof emitWarning;
  try {
    const { engine } = await initialize({ model, modelParameters, config, device });
    engine.destroy();
  } finally {
    process.emitWarning = emitWarning;
  }
  return reported;
}

async function unusedRatesAreTold(device: Device): Promise<void> {
  const settings = { warmup_max_lr: 1e-3, warmup_num_steps: 2 };
  const [reported, ...others] = await noticesOf({ type: 'WarmupLR', params: settings }, device);
  assert.match(
    reported ?? '',
    /^scheduler\.params\.warmup_max_lr is 0\.001 for all parameter groups/,
  );
  assert.match(
    reported ?? '',
    /0\.00001, have no effect with WarmupLR.*Write a list with one value per group/,
  );
  assert.deepEqual(others, []);
  const decay = { ...settings, total_num_steps: 9 };
  assert.match(
    (await noticesOf({ type: 'WarmupDecayLR', params: decay }, device))[0] ?? '',
    /Decay/,
  );
  const heard: DsConfig['scheduler'][] = [
    // The maximum comes from the rates of the groups.
    { type: 'WarmupLR', params: { warmup_num_steps: 2 } },
    { type: 'WarmupLR', params: { ...settings, warmup_max_lr: [1e-3, 1e-5] } },
    { type: 'WarmupCosineLR', params: { total_num_steps: 9, warmup_num_steps: 2 } },
  ];
  for (const scheduler of heard) assert.deepEqual(await noticesOf(scheduler, device), []);
}

async function idleMomentumIsTold(device: Device): Promise<void> {
  const cycle = { cycle_min_lr: [1e-4, 1e-4], cycle_max_lr: [1e-3, 1e-3] };
  const sgd: DsConfig = { optimizer: { type: 'SGD', params: { lr: 1e-3, momentum: 0.9 } } };
  const [reported, ...others] = await noticesOf({ type: 'OneCycle', params: cycle }, device, sgd);
  assert.match(reported ?? '', /^cycle_momentum of OneCycle has no effect on SGD without betas/);
  assert.deepEqual(others, []);
  const still = { ...cycle, cycle_momentum: false };
  assert.deepEqual(await noticesOf({ type: 'OneCycle', params: still }, device, sgd), []);
  assert.deepEqual(await noticesOf({ type: 'OneCycle', params: cycle }, device), []);
}

/**
 * The metric comes from engine.step({ metrics }), as with lr_kwargs of DeepSpeed, or from
 * lrScheduler.step(metric).
 */
async function plateauObserves(device: Device): Promise<void> {
  for (const how of ['step', 'scheduler'] as const) {
    const config: DsConfig = {
      ...tinyConfig({ precision: 'fp32', offload: false, accumulation: 2 }),
      scheduler: { type: 'ReduceLROnPlateau', params: { factor: 0.5, patience: 0 } },
    };
    const { engine } = await initialize({ model: tinyModel(), config, device });
    const [before] = engine.getLr() as [number];
    const found: number[] = [];
    for (let index = 0; index < 6; ++index) {
      const { tokens, targets } = tinyBatch(index, device);
      engine.backward(engine.forward<Tensor>(tokens, targets));
      // The first update observes 1, the others 2. Micro-batches before an update observe nothing.
      const metrics = index < 2 ? 1 : 2;
      if (how === 'step') engine.step({ metrics });
      else {
        engine.step();
        if (index % 2 === 1) engine.lrScheduler.step(metrics);
      }
      found.push((engine.getLr()[0] as number) / before);
    }
    assert.deepEqual(found, [1, 1, 1, 0.5, 0.5, 0.25], how);
    assert.throws(() => engine.lrScheduler.step(), { message: /the metric of Reduce/ });
    engine.destroy();
  }
}

async function metricsAreRefused(device: Device): Promise<void> {
  const engine = await cycleEngine(device, 'fp32');
  const { tokens, targets } = tinyBatch(0, device);
  engine.backward(engine.forward<Tensor>(tokens, targets));
  assert.throws(() => engine.step({ metrics: 1 }), { code: 'DS_ARGUMENT', message: /no metric/ });
  assert.throws(() => engine.step({ metric: 1 } as never), { message: /metrics/ });
  engine.step();
  assert.equal(engine.globalSteps, 1);
  assert.throws(() => engine.lrScheduler.step(), { code: 'DS_ARGUMENT', message: /engine\.step/ });
  engine.destroy();
}

export const cases: Case[] = [
  { name: 'ReduceLROnPlateau uses the metric passed to step()', run: plateauObserves },
  { name: 'a metric that no schedule observes', run: metricsAreRefused },
  { name: 'lists of rates: one for each parameter group', run: listsPerGroup },
  { name: 'a list of another length is refused at initialize', run: listOfAnotherLength },
  { name: 'rates of groups that a schedule ignores give a notice', run: unusedRatesAreTold },
  { name: 'OneCycle with an optimizer without betas gives a notice', run: idleMomentumIsTold },
  { name: 'OneCycle drives rate and betas of every update', run: drivesTheGroups },
  { name: 'the scheduled momentum reaches the weights', run: momentumReachesTheUpdate },
  { name: 'skipped updates do not advance OneCycle', run: skippedStepsDoNotAdvance },
];
