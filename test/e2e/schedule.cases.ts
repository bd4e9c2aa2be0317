// The engine under a schedule: OneCycle drives rate and betas of every update, skipped ones aside.
import assert from 'node:assert/strict';
import { type DsConfig, type Engine, initialize } from '../../lib/index.js';
import { OneCycle } from '../../lib/optim/index.js';
import type { Device } from '../../lib/runtime/device.js';
import { seed } from '../../lib/tensor/index.js';
import type { Case } from '../support/case.js';
import { tinyConfig, tinyModel, trainTiny, weightBits } from './tiny-training.js';

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

export const cases: Case[] = [
  { name: 'OneCycle drives rate and betas of every update', run: drivesTheGroups },
  { name: 'the scheduled momentum reaches the weights', run: momentumReachesTheUpdate },
  { name: 'skipped updates do not advance OneCycle', run: skippedStepsDoNotAdvance },
];
