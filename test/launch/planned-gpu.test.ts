// `ds plan --gpu`: named cards, the card of the machine, and the one that is assumed.
import { plan } from '../../lib/launch/plan.js';
import type { PlanFlags } from '../../lib/launch/plan-options.js';
import { choosePlannedGpu } from '../../lib/launch/planned-gpu.js';
import { H200 } from '../../lib/plan/index.js';
import { thrownBy } from '../support/refusal.js';

const GIB = 2 ** 30;
const flags: PlanFlags = {
  model: '124M',
  batch: 2,
  seq: 64,
  gpus: 1,
  nodes: 1,
  cores: 16,
  link: 50,
  nvmeRate: 2,
  tp: 1,
  pp: 1,
  precision: 'bf16',
  hostMemory: 64 * GIB,
};

test.each(['rtx4090', 'RTX 4090', 'rtx-4090'])('%s names a card with its memory', (name) => {
  const { rates, memory, note } = choosePlannedGpu(name, null);
  expect([rates.name, rates.isMeasured, memory, note]).toEqual([
    'RTX 4090',
    false,
    23.6 * GIB,
    undefined,
  ]);
});

test('without a name, plans for the GPU of the machine, or else an H200', () => {
  const here = choosePlannedGpu(undefined, { name: 'NVIDIA L4', totalBytes: 7 * GIB });
  expect([here.rates.name, here.memory]).toEqual(['L4', 7 * GIB]);
  expect(here.note).toBe('GPU of this machine: NVIDIA L4.');
  const other = choosePlannedGpu(undefined, { name: 'Some GPU', totalBytes: 9 * GIB });
  expect([other.rates, other.memory]).toEqual([H200, 9 * GIB]);
  expect(other.note).toMatch(
    /Some GPU\. Its rates are unknown: the plan uses the rates of an H200/,
  );
  const none = choosePlannedGpu(undefined, null);
  expect([none.rates, none.memory]).toEqual([H200, 139 * GIB]);
  expect(none.note).toMatch(
    /^This machine has no usable GPU: the plan assumes an H200\. Choose another/,
  );
});

test.each<[name: string, message: RegExp]>([
  ['v100', /expected a GPU of compute capability 8\.0 or higher.*got v100 of capability 7\.0/],
  ['V100-32G', /got V100-32G of capability 7\.0/],
  ['t4', /capability 7\.5/],
  ['rtx409', /expected b200, .*a100-80g.*, got "rtx409"\. Did you mean "rtx4090"\?/],
  ['x', /expected b200, .*, got "x"\. For another GPU, .*--gpu-memory/],
])('refuses %s', (name, message) => {
  const { code, message: text } = thrownBy(() => choosePlannedGpu(name, null));
  expect([code, text]).toEqual(['DS_ARGUMENT', expect.stringMatching(message)]);
});

test('a plan for an unmeasured GPU is marked "estimated"', () => {
  const { output } = plan({ ...flags, gpu: 'a100-40g' });
  expect(output).toMatch(/^ +GPU +host +step \(estimated\) +tokens\/s +way$/m);
  expect(output).toMatch(/^Rates of A100-40G, estimated: 203 TFLOP\/s .* 1\.38 TB\/s/m);
  expect(output).toMatch(/Times are estimates, because no run on A100-40G was measured\./);
  expect(output).toContain('1 x 1 GPUs of 39.0 GiB');
  expect(plan({ ...flags, gpu: 'h200' }).output).not.toContain('estimated');
});

test('--gpu-memory overrides the memory; JSON names the card', () => {
  const { output } = plan({ ...flags, gpu: 'l4', gpuMemory: 9 * GIB, json: true });
  expect(JSON.parse(output).gpu).toEqual({ name: 'L4', memory: 9 * GIB, estimated: true });
});

test('ways are listed fastest first, and the best one is marked', () => {
  const { output } = plan({ ...flags, batch: 8, seq: 1024, gpu: 'rtx4090', model: '774M' });
  const rows = output.split('\n').filter((line) => /^(best|fits) /.test(line));
  const steps = rows.map((line) => Number(/ (\d+\.\d+) s /.exec(line)?.[1]));
  expect(steps.length).toBeGreaterThan(3);
  expect(steps).toEqual(steps.toSorted((a, b) => a - b));
  expect(rows.filter((line) => line.startsWith('best'))).toHaveLength(1);
  const best = rows.find((line) => line.startsWith('best')) as string;
  expect(output).toContain(`Best: ${best.slice(best.indexOf('stage '))}.`);
});
