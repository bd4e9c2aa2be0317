// The lines of steps_per_print and wall_clock_breakdown.
import { ConsoleMonitor } from '../../lib/monitor/index.js';

function lines(every: number, clock: { time: number }) {
  const out: string[] = [];
  const stream = { write: (text: string) => out.push(text) };
  return { out, monitor: new ConsoleMonitor({ every, stream, now: () => clock.time }) };
}

const report = { skipped: 1, lr: [1e-3], momentum: [[0.9, 0.95]], loss: 4.87128 };

test('every N-th step gets a line with the rate since the line before', () => {
  const clock = { time: 0 };
  const { out, monitor } = lines(2, clock);
  for (let step = 1; step <= 5; ++step) {
    clock.time = step * 500;
    monitor.progress({ ...report, step, samples: step * 8 });
  }
  expect(out).toEqual([
    'step=2, skipped=1, lr=[0.001], mom=[[0.9, 0.95]], loss=4.8713, samples/s=16.0\n',
    'step=4, skipped=1, lr=[0.001], mom=[[0.9, 0.95]], loss=4.8713, samples/s=16.0\n',
  ]);
});

test('the first line of all has nothing to measure a rate from', () => {
  const { out, monitor } = lines(1, { time: 0 });
  monitor.progress({ ...report, step: 41, samples: 328, loss: null });
  expect(out).toEqual(['step=41, skipped=1, lr=[0.001], mom=[[0.9, 0.95]]\n']);
});

test('phase times are printed', () => {
  const { out, monitor } = lines(2, { time: 0 });
  for (const step of [1, 2]) monitor.times(step, { forward: 1.234, backward: 20, step: 0 });
  expect(out).toEqual(['step=2, time (ms) | forward: 1.23 | backward: 20.00 | step: 0.00\n']);
});
