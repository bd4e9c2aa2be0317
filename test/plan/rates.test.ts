// The rates of GPUs: the table of published figures, and estimates from it.

import { nn } from '../../lib/index.js';
import { findGpuByName, GPUS, TOO_OLD } from '../../lib/monitor/gpus.js';
import {
  H200,
  plainSetup,
  predictStepTime,
  ratesNamed,
  ratesOf,
  sizesOf,
} from '../../lib/plan/index.js';
import { readPage } from '../docs/snippets.js';

const of = (key: string) => {
  const gpu = GPUS.find((gpu) => gpu.key === key);
  if (!gpu) throw new Error(`no ${key}`);
  return ratesOf(gpu);
};

test.each<[driver: string, key: string | undefined]>([
  ['NVIDIA H200', 'h200'],
  ['NVIDIA H200 NVL', 'h200-nvl'],
  ['NVIDIA H100 80GB HBM3', 'h100'],
  ['NVIDIA H100 PCIe', 'h100-pcie'],
  ['NVIDIA A100-SXM4-80GB', 'a100-80g'],
  ['NVIDIA A100 80GB PCIe', 'a100-80g'],
  ['NVIDIA A100-SXM4-40GB', 'a100-40g'],
  ['NVIDIA A100-PCIE-40GB', 'a100-40g'],
  ['NVIDIA A10G', 'a10g'],
  ['NVIDIA A10', 'a10'],
  ['NVIDIA L4', 'l4'],
  ['NVIDIA L40S', 'l40s'],
  ['NVIDIA RTX 6000 Ada Generation', 'rtx6000-ada'],
  ['NVIDIA GeForce RTX 3090', 'rtx3090'],
  ['NVIDIA GeForce RTX 4090', 'rtx4090'],
  ['NVIDIA GeForce RTX 5090', 'rtx5090'],
  ['NVIDIA GeForce RTX 3090 Ti', undefined],
  ['Tesla V100-SXM2-32GB', undefined],
])('the driver calls it %s: %s', (driver, key) => {
  expect(findGpuByName(driver)?.key).toBe(key);
});

test('figures are plausible, and keys are unique', () => {
  const keys = [...GPUS.map(({ key }) => key), ...Object.keys(TOO_OLD)];
  expect(new Set(keys).size).toBe(keys.length);
  for (const { half, f32, memory, bandwidth, nvlink, pcie, capability } of GPUS) {
    // Dense products of 16 bits are 2 to 30 times as fast as those of f32.
    expect(half / f32).toBeGreaterThan(1.9);
    expect(half / f32).toBeLessThan(31);
    expect(memory).toBeGreaterThan(20);
    expect(bandwidth).toBeGreaterThan(pcie);
    expect(nvlink ?? pcie).toBeGreaterThanOrEqual(pcie);
    expect(capability).toBeGreaterThanOrEqual(8);
  }
});

test('the H200 keeps its measured rates, others are estimates in proportion', () => {
  expect(of('h200')).toBe(H200);
  const a100 = of('a100-80g');
  expect(a100).toMatchObject({ name: 'A100-80G', isMeasured: false, hostAdam: H200.hostAdam });
  expect(a100.matmul / H200.matmul).toBeCloseTo(312 / 989.4, 10);
  expect(a100.deviceMemory / H200.deviceMemory).toBeCloseTo(2039 / 4800, 10);
  expect(a100.pcie).toBe(H200.pcie / 2);
  expect(a100.link / H200.link).toBeCloseTo(300 / 450, 10);
  expect(of('rtx4090').link).toBe(of('rtx4090').pcie);
  expect(ratesNamed('NVIDIA L4')).toEqual(of('l4'));
  expect(ratesNamed('another card')).toBe(H200);
});

test('a slower GPU takes longer, and f32 has the rate of its own units', () => {
  const sizes = sizesOf(new nn.models.GPT2(nn.models.GPT2.config('124M')));
  const at = { nodes: 1, devicesPerNode: 1, coresPerNode: 16, nodeLink: 50e9 };
  const step = (key: string, precision: 'bf16' | 'fp32') =>
    predictStepTime(sizes, { ...plainSetup, microBatch: 8, precision }, of(key), at).step;
  const order = ['b200', 'h200', 'h100', 'a100-80g', 'rtx4090', 'rtx3090'];
  const times = order.map((key) => step(key, 'bf16'));
  expect(times).toEqual(times.toSorted((a, b) => a - b));
  expect(step('a100-80g', 'fp32') / step('a100-80g', 'bf16')).toBeGreaterThan(8);
  expect(step('rtx4090', 'fp32') / step('rtx4090', 'bf16')).toBeLessThan(3);
});

test('the table of docs/planning.md has these figures', () => {
  const rows = readPage('docs/planning.md').match(/^\| .* \| (measured|estimated) \|$/gm) ?? [];
  const figures = GPUS.map(({ key, memory, half, f32, bandwidth, nvlink }) => {
    const times = key === 'h200' ? 'measured' : 'estimated';
    return `| \`${key}\` | ${[memory, half, f32, bandwidth, nvlink ?? 'none', times].join(' | ')} |`;
  });
  expect(rows).toEqual(figures);
});
