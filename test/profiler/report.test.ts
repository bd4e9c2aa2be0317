// Tests the text of a profile: units, percentages, levels, and omitted parts.
import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { profiler } from '../../lib/index.js';
import { captureOutput } from '../support/printed.js';

const { formatCount, formatDuration, formatProfile, printProfile } = profiler;

const work = (macs: number, flops = 2 * macs): profiler.Work => ({ macs, flops });

function module(
  name: string,
  type: string,
  macs: number,
  latencyMs: number,
): profiler.ModuleProfile {
  const passes = { forward: work(macs), backward: work(2 * macs), recompute: work(0) };
  const share = { parameters: 0.5, macs: macs / 400, latency: latencyMs / 8 };
  const times = { latencyMs, ownLatencyMs: latencyMs, recomputeMs: 0 };
  const children: profiler.ModuleProfile[] = [];
  return {
    name,
    type,
    parameters: 10,
    calls: 1,
    work: passes,
    own: passes,
    ...times,
    share,
    children,
  };
}

function example(engine: profiler.StepFacts | null): profiler.ModelProfile {
  const model = module('', 'Net', 400, 8);
  const silent = { ...module('c', 'Norm', 0, 0), calls: 0 };
  model.children.push(module('a', 'Linear', 100, 3), module('b', 'Linear', 250, 2), silent);
  model.children.push(module('d', 'Conv', 50, 4));
  return { device: 'cpu', parameters: 20, work: model.work, engine, model };
}

test('counts and durations are formatted with units', () => {
  expect([0, 7, 999, 999.999, 1234, 999_999, 1.5e6, 2e12, 3e21].map((n) => formatCount(n))).toEqual(
    ['0', '7', '999', '1 K', '1.23 K', '1 M', '1.5 M', '2 T', '3000 E'],
  );
  expect(formatCount(1000, 'FLOPS')).toBe('1 KFLOPS');
  expect([0, 0.0123, 1, 999, 1000].map(formatDuration)).toEqual([
    '0.00 us',
    '12.30 us',
    '1.00 ms',
    '999.00 ms',
    '1.00 s',
  ]);
});

test('classes of a level are added up, the largest first', () => {
  const text = formatProfile(example(null), { topModules: 2 });
  expect(text).toContain('    MACs        - Linear: 350 MACs, Conv: 50 MACs');
  expect(text).toContain('    fwd latency - Linear: 5.00 ms, Conv: 4.00 ms');
  expect(text).toContain('depth 1:');
  expect(formatProfile(example(null), { moduleDepth: 0 })).not.toContain('depth 1:');
});

test('the tree has shares, and no numbers for a module that never ran', () => {
  const text = formatProfile(example(null));
  expect(text).toContain(
    '(b): Linear(10 = 50% Params, 250 MACs = 62.5% MACs, 2.00 ms = 25% latency, 250 KFLOPS, bwd 1 K)',
  );
  expect(text).toContain('  (c): Norm(10 = 50% Params, fused)');
  expect(formatProfile(example(null), { detailed: false })).not.toContain('(b)');
});

test('a step has rates of its phases; the estimate takes the factor', () => {
  const latencyMs = { forward: 10, backward: 20, step: 9, total: 40 };
  const facts = { step: 5, samples: 6, microBatches: 2, latencyMs };
  const text = formatProfile(example(facts), { recomputeFwdFactor: 2 });
  expect(text).toMatch(/global step: +5\n/);
  expect(text).toMatch(/samples, in micro-batches: +6 in 2\n/);
  expect(text).toMatch(/DeepSpeed's estimate: +0\.5000\n/);
  expect(text).toMatch(/model FLOPS = .*: +60 KFLOPS\n/);
  expect(text).toMatch(/samples\/second: +150\.00\n/);
  expect(formatProfile(example(null))).not.toContain('bwd latency');
});

test('the documented output has the lines that the code prints', async () => {
  const page = readFileSync(join(__dirname, '../../docs/profiling.md'), 'utf8');
  const facts = { step: 3, samples: 2, microBatches: 1 };
  const latencyMs = { forward: 1, backward: 1, step: 1, total: 3 };
  const text = await captureOutput(async () => printProfile(example({ ...facts, latencyMs })));
  const labels = text.split('\n').flatMap((line) => /^([a-z].*?): {2,}/i.exec(line)?.[1] ?? []);
  expect(labels.length).toBeGreaterThan(12);
  for (const label of labels) expect(page).toContain(`${label}:`);
});
