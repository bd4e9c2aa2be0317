// Tests which steps a run of the autotuner measures. A clock of the test replaces the real time.
import { mkdtempSync, readFileSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import type { ResolvedConfig } from '../../lib/config/index.js';
import { MeasuredSteps } from '../../lib/engine/watch/experiment.js';
import type { PhaseTimer } from '../../lib/engine/watch/phase-timer.js';
import { Linear } from '../../lib/nn/index.js';
import { cpu } from '../../lib/runtime/device.js';

const folder = mkdtempSync(join(tmpdir(), 'ds-measured-steps-'));
afterAll(() => rmSync(folder, { recursive: true }));
afterEach(() => jest.restoreAllMocks());

const inner = { time: (_: string, body: () => unknown) => body(), finishStep() {} };

/** Runs steps with these times in ms, and returns the result when the run would end. */
function measured(
  times: readonly number[],
  { start, end }: { start: number; end: number },
): Record<string, number> & { steps: number } {
  let clock = 1000;
  let isOver = false;
  jest.spyOn(performance, 'now').mockImplementation(() => clock);
  jest.spyOn(process, 'exit').mockImplementation((() => {
    isOver = true;
  }) as never);
  const path = join(folder, 'metrics.json');
  const autotuning = {
    ...{ start_profile_step: start, end_profile_step: end },
    ...{ metric: 'throughput', metric_path: path },
  };
  const timer = new MeasuredSteps(inner as unknown as PhaseTimer, {
    module: new Linear(2, 2),
    device: cpu(),
    config: { autotuning, train_batch_size: 6 } as unknown as ResolvedConfig,
    world: { rank: 0, size: 1 } as never,
    isPipeline: false,
  });
  let steps = 0;
  for (const time of times) {
    // The program's own work between two steps, then forward and backward.
    clock += time / 2;
    for (const phase of ['forward', 'backward'] as const) {
      timer.time(phase, () => {
        clock += time / 4;
      });
    }
    timer.finishStep(++steps, 6);
    if (isOver) break;
  }
  expect(isOver).toBe(true);
  return { ...JSON.parse(readFileSync(path, 'utf8')), steps };
}

test('the steps after start_profile_step count, with the work between them', () => {
  const result = measured([1000, 1000, 1000, 40, 60, 80, 5], { start: 3, end: 5 });
  expect(result).toMatchObject({ latency: 60, throughput: 100, train_batch_size: 6, steps: 6 });
});

test('from step 0 on, the first forward starts the measurement', () => {
  const result = measured([40, 60, 80, 5], { start: 0, end: 1 });
  // Half of the first step passes before its forward.
  expect(result).toMatchObject({ latency: (20 + 60) / 2, throughput: 150, steps: 2 });
});
