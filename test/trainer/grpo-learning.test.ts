// A small model learns sums by rewards: bench/results/rewards-cpu.json has whole curves.
import { learn } from '../../bench/rewards.js';

test('rewards of sums grow from a fifth', async () => {
  const { rewards } = await learn('grpo', { steps: 40, start: 2 });
  const mean = (values: readonly number[]): number =>
    values.reduce((sum, value) => sum + value, 0) / values.length;
  expect(mean(rewards.slice(0, 5))).toBeLessThan(0.3);
  expect(mean(rewards.slice(-5))).toBeGreaterThan(0.35);
});
