// Learning-rate schedules against formulas written down independently from DeepSpeed's
// documentation.

import { Tensor } from '../../lib/index.js';
import { CosineAnnealingWarmRestarts } from '../../lib/optim/cosine.js';
import { ConstantLr, LinearLr, LrRangeTest, MultiStepLr } from '../../lib/optim/decay.js';
import { LambdaLr } from '../../lib/optim/lambda.js';
import { OneCycle } from '../../lib/optim/one-cycle.js';
import { type PlateauOptions, ReduceLrOnPlateau } from '../../lib/optim/reduce-on-plateau.js';
import { WarmupCosineLr, WarmupDecayLr, WarmupLr } from '../../lib/optim/warmup.js';

const STEPS = 3000;
const INF = Number.POSITIVE_INFINITY;

/** The climb as DeepSpeed computes it, with t = last_batch_iteration. */
function gamma(t: number, n: number, type: string): number {
  if (t >= n) return 1;
  return type === 'linear' ? t / n : Math.log(t + 1) / Math.log(n);
}

describe.each(['log', 'linear'] as const)('warm-up type %s', (type) => {
  test('WarmupLR', () => {
    const schedule = new WarmupLr({ minLr: 1e-6, maxLr: 1e-3, warmupSteps: 100, warmupType: type });
    for (let n = 1; n <= STEPS; ++n) {
      const expected = 1e-6 + (1e-3 - 1e-6) * gamma(n - 1, 100, type);
      expect(Math.abs(schedule.lr(n) / expected - 1)).toBeLessThan(1e-12);
    }
    expect(schedule.lr(0)).toBe(1e-6);
  });

  test('WarmupDecayLR', () => {
    const options = { minLr: 1e-5, maxLr: 3e-4, warmupSteps: 500, warmupType: type };
    const schedule = new WarmupDecayLr({ ...options, totalSteps: 2000 });
    for (let n = 1; n <= STEPS; ++n) {
      const t = n - 1;
      const share = t < 500 ? gamma(t, 500, type) : Math.max(0, (2000 - t) / 1500);
      expect(Math.abs(schedule.lr(n) - (1e-5 + (3e-4 - 1e-5) * share))).toBeLessThan(1e-16);
    }
    expect(schedule.lr(STEPS)).toBe(1e-5);
  });

  test('WarmupCosineLR', () => {
    const options = { warmupMinRatio: 0.1, warmupSteps: 300, cosMinRatio: 0.01, warmupType: type };
    const schedule = new WarmupCosineLr({ ...options, baseLr: 2e-3, totalSteps: 2500 });
    for (let n = 1; n <= STEPS; ++n) {
      const t = n - 1;
      const p = Math.min(1, (t - 299) / 2200);
      const ratio =
        t < 300
          ? 0.1 + 0.9 * gamma(t, 300, type)
          : Math.max(0, 0.01 + (0.99 * (1 + Math.cos(Math.PI * p))) / 2);
      expect(Math.abs(schedule.lr(n) - 2e-3 * ratio)).toBeLessThan(1e-15);
    }
    expect(schedule.lr(0)).toBe(0);
    expect(schedule.lr(STEPS)).toBeCloseTo(2e-5, 15);
  });
});

test('with a minimum of 0 the first two updates have rate 0', () => {
  const schedule = new WarmupLr({ maxLr: 1, warmupSteps: 10 });
  expect([0, 1].map((n) => schedule.lr(n))).toEqual([0, 0]);
  expect(schedule.lr(2)).toBeCloseTo(Math.log(2) / Math.log(10), 14);
});

test('the logarithmic climb arrives one update before the linear one', () => {
  const log = new WarmupLr({ maxLr: 1, warmupSteps: 10, warmupType: 'log' });
  const linear = new WarmupLr({ maxLr: 1, warmupSteps: 10, warmupType: 'linear' });
  expect(log.lr(10)).toBeCloseTo(1, 14);
  expect(linear.lr(10)).toBeCloseTo(0.9, 14);
  expect(linear.lr(11)).toBe(1);
});

test.each([0, 1])('%i warm-up updates count as two', (warmupSteps) => {
  expect(new WarmupLr({ maxLr: 1, warmupSteps, warmupType: 'linear' }).lr(2)).toBe(0.5);
  const cosine = { baseLr: 1, totalSteps: 9, warmupType: 'linear' } as const;
  expect(new WarmupCosineLr({ ...cosine, warmupSteps }).lr(2)).toBe(0.5);
});

test.each([-3, 2.5])('%p warm-up updates are refused', (warmupSteps) => {
  const message = /warmup_num_steps.*integer of at least 0/;
  expect(() => new WarmupLr({ maxLr: 1, warmupSteps })).toThrow(message);
  expect(() => new WarmupCosineLr({ baseLr: 1, totalSteps: 9, warmupSteps })).toThrow(message);
});

test('values that are not finite are refused', () => {
  const warmupSteps = Number.NaN;
  expect(() => new WarmupLr({ maxLr: 1, warmupSteps })).toThrow(/warmupSteps.*finite.*got NaN/);
});

test('a run that ends during the warm-up reaches a part of the rate, which then stays', () => {
  const steps = { totalSteps: 20, warmupSteps: 50, warmupType: 'linear' } as const;
  const decay = new WarmupDecayLr({ maxLr: 1, ...steps });
  const cosine = new WarmupCosineLr({ baseLr: 1, ...steps });
  expect([1, 20, 50, 51, 90].map((n) => decay.lr(n))).toEqual([0, 0.38, 0.98, 0, 0]);
  expect([1, 20, 50].map((n) => cosine.lr(n))).toEqual([0, 0.38, 0.98]);
});

describe('OneCycle', () => {
  const ends = { minLr: 1e-4, maxLr: 1e-3, firstStepSize: 10, secondStepSize: 30 };

  test('the rate peaks where the momentum is lowest, and both return', () => {
    const schedule = new OneCycle(ends);
    expect([0, 10, 25, 40].map((n) => schedule.lr(n))).toEqual([1e-4, 1e-3, 5.5e-4, 1e-4]);
    expect(schedule.momentum(1)).toBeCloseTo(0.89, 14);
    expect(schedule.momentum(10)).toBeCloseTo(0.8, 14);
    expect(schedule.momentum(40)).toBe(0.9);
  });

  test('a stair count of -1 gives a straight line', () => {
    const line = new OneCycle(ends);
    const same = new OneCycle({ ...ends, firstStairCount: -1, secondStairCount: -1 });
    for (const n of [3, 7, 22, 39]) expect(same.lr(n)).toBe(line.lr(n));
  });

  test('update 0 runs at the lower momentum', () => {
    expect(new OneCycle(ends).momentum(0)).toBe(0.8);
  });

  test('without a decay step size nothing decays', () => {
    const schedule = new OneCycle({ ...ends, decayLrRate: 1, decayMomentumRate: 1 });
    expect([schedule.lr(5000), schedule.momentum(5000)]).toEqual([1e-4, 0.9]);
  });

  test('without cycleMomentum the betas stay as they are', () => {
    const group = { lr: 0, betas: [0.9, 0.999] as const };
    new OneCycle({ ...ends, cycleMomentum: false }).apply(group, 10);
    expect(group).toEqual({ lr: 1e-3, betas: [0.9, 0.999] });
  });

  test.each([
    [{ firstStepSize: 0 }, /cycle_first_step_size/],
    [{ secondStepSize: -1 }, /cycle_second_step_size/],
  ])('%j is refused', (options, message) => {
    expect(() => new OneCycle({ ...ends, ...options })).toThrow(message);
  });
});

test('LRRangeTest starts at its minimum and adds it once per interval', () => {
  const schedule = new LrRangeTest({ stepSize: 4, staircase: true });
  expect([0, 3, 4, 8].map((n) => schedule.lr(n))).toEqual([1e-3, 1e-3, 2e-3, 3e-3]);
});

test('LambdaLR multiplies the rate, and refuses a factor that is no function or no number', () => {
  const schedule = new LambdaLr({ baseLr: 0.5, factor: (n) => 0.9 ** n });
  expect([0, 1, 3].map((n) => schedule.lr(n))).toEqual([0.5, 0.45, 0.5 * 0.9 ** 3]);
  expect(() => new LambdaLr({ baseLr: 1, factor: 2 as never })).toThrow(/a function/);
  expect(() => new LambdaLr({ baseLr: 1, factor: () => Number.NaN }).lr(7)).toThrow(/7 updates/);
});

test.each([[3], [[1.5]]])('milestones %j are refused', (milestones) => {
  expect(() => new MultiStepLr({ baseLr: 1, milestones: milestones as number[] })).toThrow(
    /milestones.*list of integers/,
  );
});

test('a missing rate is an error, not NaN', () => {
  const nothing = {} as { baseLr: number };
  const schedules = {
    LinearLR: () => new LinearLr(nothing),
    MultiStepLR: () => new MultiStepLr({ ...nothing, milestones: [1] }),
    LambdaLR: () => new LambdaLr({ ...nothing, factor: () => 1 }),
    CosineAnnealingWarmRestarts: () =>
      new CosineAnnealingWarmRestarts({ ...nothing, firstPeriod: 2 }),
  };
  for (const [name, make] of Object.entries(schedules))
    expect(make).toThrow(`${name} baseLr: expected a finite number, got undefined`);
});

describe('ReduceLROnPlateau', () => {
  test('one bad metric more than the patience lowers the rate', () => {
    const schedule = new ReduceLrOnPlateau({ baseLr: 1, patience: 2, factor: 0.5, minLr: 0.3 });
    const rates = [5, 4, 4, 4, 4, 4, Number.NaN, Number.POSITIVE_INFINITY].map((metric) => {
      schedule.observe(metric);
      return schedule.lr();
    });
    expect(rates).toEqual([1, 1, 1, 1, 0.5, 0.5, 0.5, 0.3]);
  });

  test('the state of another schedule is refused and does not change this one', () => {
    const schedule = new ReduceLrOnPlateau({ baseLr: 1 });
    expect(() => schedule.loadStateDict({ lr: 5 })).toThrow(
      expect.objectContaining({ code: 'DS_CHECKPOINT' }),
    );
    expect(schedule.lr()).toBe(1);
  });

  /** Rates, as torch.optim.lr_scheduler.ReduceLROnPlateau gives them for these metrics. */
  test.each<[options: Partial<PlateauOptions>, metrics: number[], rates: number[]]>([
    [{}, [1, -INF, -1e30, -INF], [1, 1, 0.5, 0.25]],
    [{}, [INF, INF, 3, 2], [0.5, 0.25, 0.25, 0.25]],
    [{ mode: 'max' }, [1, INF, 1e30, INF], [1, 1, 0.5, 0.25]],
    [{ mode: 'max' }, [-INF, -5, -4], [0.5, 0.5, 0.5]],
    [{ thresholdMode: 'abs' }, [1, -INF, -INF], [1, 1, 0.5]],
    [{ threshold: 1 }, [1, -1], [0.5, 0.25]],
    [{}, [Number.NaN, 1, Number.NaN], [0.5, 0.5, 0.25]],
  ])('infinite metrics of %j: %j', (options, metrics, rates) => {
    const make = () => new ReduceLrOnPlateau({ baseLr: 1, patience: 0, factor: 0.5, ...options });
    const schedule = make();
    const found = metrics.map((metric) => {
      schedule.observe(metric);
      return schedule.lr();
    });
    expect(found).toEqual(rates);
    // A checkpoint is JSON, which has no infinite numbers.
    const again = make();
    again.loadStateDict(JSON.parse(JSON.stringify(schedule.stateDict())));
    expect(again).toEqual(schedule);
  });

  test('a metric is a number or a tensor of one element', () => {
    const schedule = new ReduceLrOnPlateau({ baseLr: 1, patience: 0, factor: 0.5 });
    for (const value of [2, 3]) schedule.observe(Tensor.from([value], { shape: [] }));
    expect(schedule.lr()).toBe(0.5);
    for (const metric of ['3', undefined, null, {}]) {
      expect(() => schedule.observe(metric as never)).toThrow(/a number, or a tensor/);
    }
  });

  test('a factor of 1 is refused', () => {
    expect(() => new ReduceLrOnPlateau({ baseLr: 1, factor: 1 })).toThrow(/factor/);
  });
});

test.each<[make: (options: never) => unknown, options: object, message: string]>([
  [
    (o) => new WarmupLr(o),
    { maxLr: 1, warmupType: 'LOG' },
    'WarmupLR warmupType: expected "log", ',
  ],
  [(o) => new LrRangeTest(o), { staircase: 'false' }, 'LRRangeTest staircase: expected true or'],
  [(o) => new OneCycle(o), { minLr: 0, maxLr: 1, cycleMomentum: 0 }, 'OneCycle cycleMomentum: '],
  [
    (o) => new ReduceLrOnPlateau(o),
    { baseLr: 1, mode: 'minimum' },
    'ReduceLROnPlateau mode: expected "min", "max", got "minimum"',
  ],
  [
    (o) => new ReduceLrOnPlateau(o),
    { baseLr: 1, thresholdMode: 'relative' },
    'ReduceLROnPlateau thresholdMode: expected "rel", "abs"',
  ],
])('an unknown option value is refused: %# %j', (make, options, message) => {
  expect(() => make(options as never)).toThrow(message);
});

/** Like torch.optim.lr_scheduler.ConstantLR: update number `total_iters` restores the rate. */
test.each([
  [2, [0.5, 0.5, 1, 1]],
  [1, [0.5, 1, 1, 1]],
  [0, [0.5, 0.5, 0.5, 0.5]],
  [-1, [0.5, 0.5, 0.5, 0.5]],
  [1.5, [0.5, 0.5, 0.5, 0.5]],
])('ConstantLR with %d iterations', (steps, rates) => {
  const schedule = new ConstantLr({ baseLr: 1, factor: 0.5, steps });
  expect(rates.map((_, n) => schedule.lr(n))).toEqual(rates);
});
