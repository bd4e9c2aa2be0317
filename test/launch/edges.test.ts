// The adapters that a plan is asked for, the GPUs of a rank, and two presses of Ctrl+C.
import type { Job } from '../../lib/launch/job.js';
import { parseFeatures } from '../../lib/launch/machine/processor.js';
import { plan } from '../../lib/launch/plan.js';
import type { PlanFlags } from '../../lib/launch/plan-options.js';
import { createRankEnvironment } from '../../lib/launch/rank-environment.js';
import { CHAT_SAMPLING } from '../../lib/serve/chat-options.js';

const flags = (localOptions: Partial<PlanFlags>): PlanFlags =>
  ({
    model: '124M',
    gpu: 'H200',
    batch: 1,
    tp: 1,
    pp: 1,
    gpus: 1,
    nodes: 1,
    json: true,
    ...localOptions,
  }) as PlanFlags;

test('adapters are planned on unquantized layers, and on 4-bit weights only on request', () => {
  const refusalOf = (localOptions: Partial<PlanFlags>) => () => plan(flags(localOptions));
  expect(refusalOf({ lora: 8, tp: 2 })).toThrow(/--tp 1 and --pp 1: adapters are not cut/);
  expect(refusalOf({ lora: 8, pp: 2 })).toThrow(/got --tp 1 --pp 2/);
  expect(refusalOf({ lora: 8, qlora: 8 })).toThrow(/--lora or --qlora/);
  const weightsOf = (localOptions: Partial<PlanFlags>): string => plan(flags(localOptions)).output;
  expect(weightsOf({ lora: 8 })).not.toBe(weightsOf({ qlora: 8 }));
});

test('a rank sees the GPUs of its node, and none in a job on the CPU', () => {
  const nodes = [
    { host: 'a', slots: [0] },
    { host: 'b', slots: [2, 3] },
  ];
  const visibleGpus = (device: 'cpu' | 'gpu') => {
    const job = { nodes, device, environment: {}, masterAddr: 'a', masterPort: 1, secret: 's' };
    const place = { rank: 2, localRank: 1, nodeRank: 1 };
    return createRankEnvironment(job as unknown as Job, place, null, {}).CUDA_VISIBLE_DEVICES;
  };
  expect([visibleGpus('gpu'), visibleGpus('cpu')]).toEqual(['2,3', '']);
});

test('features are read from the first processor', () => {
  const text = 'processor: 0\nflags\t\t: fpu avx2 fma\nbugs: none\nprocessor: 1\nflags: avx512f\n';
  expect(parseFeatures(text)).toEqual(expect.arrayContaining(['avx2']));
  expect(parseFeatures(text)).not.toContain('avx512f');
});

test('a conversation in the terminal takes sampling options that are numbers', () => {
  const flagOf = (name: string): unknown => CHAT_SAMPLING[name]?.flag;
  expect(flagOf('temperature')).toBe('--temperature <n>');
  expect(flagOf('topK')).toBe('--top-k <n>');
  expect(flagOf('stop')).toBeUndefined();
});
