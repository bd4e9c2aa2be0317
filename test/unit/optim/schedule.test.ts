// Learning-rate schedules against formulas written down independently from DeepSpeed's
// documentation.
import { WarmupLr } from '../../../lib/optim/warmup.js';
import { WarmupCosineLr } from '../../../lib/optim/warmup-cosine.js';
import { WarmupDecayLr } from '../../../lib/optim/warmup-decay.js';

const STEPS = 3000;

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

test('one warm-up update counts as two', () => {
  expect(new WarmupLr({ maxLr: 1, warmupSteps: 1, warmupType: 'linear' }).lr(2)).toBe(0.5);
});

test.each([0, -3, 2.5, Number.NaN])('%p warm-up updates are refused', (warmupSteps) => {
  expect(() => new WarmupLr({ maxLr: 1, warmupSteps })).toThrow(
    /warmup_num_steps.*positive integer/,
  );
});
