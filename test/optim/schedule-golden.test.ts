// Every schedule against numbers of an independent program (scripts/record-schedules.py), from the
// configuration to the optimizer's group.
import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { type DsConfig, resolveConfig } from '../../lib/config/index.js';
import { buildSchedules } from '../../lib/engine/setup/schedule.js';
import { ReduceLrOnPlateau } from '../../lib/optim/reduce-on-plateau.js';
import type { LrSchedule } from '../../lib/optim/schedule.js';
import type { ResolvedScheduler } from '../../types/config.js';

/** Of every block of steps the first value and the sum. */
interface Series {
  first: number[];
  sum: number[];
}

interface Case {
  scheduler: NonNullable<DsConfig['scheduler']>;
  lr: Series;
  /** Absent if the schedule does not change the betas. */
  momentum?: Series;
}

interface Golden {
  steps: number;
  block: number;
  learningRate: number;
  cases: Case[];
}

const golden: Golden = JSON.parse(
  readFileSync(join(__dirname, '../golden/schedules.json'), 'utf8'),
);
const TOLERANCE = 1e-12;
const BETAS = [0.6, 0.7] as const;

function scheduleOf(scheduler: Case['scheduler']): LrSchedule {
  const config: DsConfig = { train_micro_batch_size_per_gpu: 1, scheduler };
  const resolved = resolveConfig(config, { worldSize: 1 });
  const group = { params: [], lr: golden.learningRate, weightDecay: 0 };
  const { schedules } = buildSchedules(resolved.scheduler as ResolvedScheduler, [group]);
  return schedules[0] as LrSchedule;
}

/** The metric of the recording: a falling trend with noise, and NaN now and then. */
function metric(n: number): number {
  return n % 97 === 5 ? Number.NaN : 1000 / (n + 200) + ((n * 7919) % 1009) / 1009;
}

/** Rates and betas that a group has at every update, with an observation after each. */
function run({ scheduler }: Case): { lr: number[]; betas: (readonly [number, number])[] } {
  const schedule = scheduleOf(scheduler);
  const larger = scheduler.type === 'ReduceLROnPlateau' && scheduler.params?.mode === 'max';
  const group = { lr: -1, betas: BETAS as readonly [number, number] };
  const lr: number[] = [];
  const betas: (readonly [number, number])[] = [];
  for (let n = 0; n < golden.steps; ++n) {
    schedule.apply(group, n);
    expect(schedule.lr(n)).toBe(group.lr);
    lr.push(group.lr);
    betas.push(group.betas);
    if (schedule instanceof ReduceLrOnPlateau) schedule.observe(larger ? -metric(n) : metric(n));
  }
  return { lr, betas };
}

/** Largest difference to `expected`, in units of each block's largest value. */
function deviation(values: readonly number[], expected: Series): number {
  const { block } = golden;
  let worst = 0;
  for (let i = 0; i * block < golden.steps; ++i) {
    const part = values.slice(i * block, (i + 1) * block);
    const first = Math.abs((part[0] as number) - (expected.first[i] as number));
    const sum = Math.abs(part.reduce((a, b) => a + b, 0) - (expected.sum[i] as number));
    const largest = Math.max(...part.map(Math.abs));
    if (largest > 0) worst = Math.max(worst, first / largest, sum / largest);
    else expect([first, sum]).toEqual([0, 0]);
  }
  return worst;
}

const named = golden.cases.map((item) => [JSON.stringify(item.scheduler), item] as const);

test.each(named)('%s', (_name, item) => {
  const { lr, betas } = run(item);
  expect(deviation(lr, item.lr)).toBeLessThan(TOLERANCE);
  if (item.momentum) {
    const momenta = betas.map(([momentum]) => momentum);
    expect(deviation(momenta, item.momentum)).toBeLessThan(TOLERANCE);
    expect(new Set(betas.map(([, second]) => second))).toEqual(new Set([0.99]));
  } else {
    expect(new Set(betas)).toEqual(new Set([BETAS]));
  }
});

test('every schedule that a configuration may name was recorded', () => {
  const types = new Set<string>(golden.cases.map(({ scheduler }) => scheduler.type));
  expect([...types].sort()).toEqual([
    'ConstantLR',
    'CosineAnnealingLR',
    'CosineAnnealingWarmRestarts',
    'ExponentialLR',
    'LRRangeTest',
    'LinearLR',
    'MultiStepLR',
    'OneCycle',
    'PolynomialLR',
    'ReduceLROnPlateau',
    'StepLR',
    'WarmupCosineLR',
    'WarmupDecayLR',
    'WarmupLR',
  ]);
});

test.each(named)('%s continues from its saved state', (_name, { scheduler }) => {
  const first = scheduleOf(scheduler);
  const second = scheduleOf(scheduler);
  const observe = (schedule: LrSchedule, n: number): void => {
    if (schedule instanceof ReduceLrOnPlateau) schedule.observe(metric(n));
  };
  for (let n = 0; n < 500; ++n) observe(first, n);
  second.loadStateDict(JSON.parse(JSON.stringify(first.stateDict())));
  for (let n = 500; n < 1000; ++n) {
    expect(second.lr(n)).toBe(first.lr(n));
    observe(first, n);
    observe(second, n);
  }
});
