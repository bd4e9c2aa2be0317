// Tests the FLOPs per token, the peak rates of GPUs, and the utilization in a progress bar.
import { cpu, monitor } from '../../lib/index.js';
import { peakFlopsOf } from '../../lib/monitor/utilization.js';

const { flopsPerToken, peakFlops, ProgressBar } = monitor;

function stream(): NodeJS.WriteStream & { text: string } {
  const out = {
    isTTY: false,
    text: '',
    write(chunk: string) {
      out.text += chunk;
      return true;
    },
  };
  return out as unknown as NodeJS.WriteStream & { text: string };
}

test('a token of a transformer costs 6 FLOPs a parameter, and attention to its sequence', () => {
  const size = { parameters: 124e6, layers: 12, width: 768, sequence: 1024 };
  expect(flopsPerToken(size)).toBe(6 * 124e6 + 12 * 12 * 768 * 1024);
  expect(() => flopsPerToken({ ...size, layers: 1.5 })).toThrow(
    'flopsPerToken layers: expected an integer of at least 1, got 1.5',
  );
  expect(() => flopsPerToken({ ...size, depth: 1 } as never)).toThrow('"depth"');
});

test.each([
  ['NVIDIA H100 80GB HBM3', 989.4, 66.9],
  ['NVIDIA H100 PCIe', 756, 51],
  ['NVIDIA H100 NVL', 835.5, 60],
  ['NVIDIA H200', 989.4, 66.9],
  ['NVIDIA GH200 480GB', 989.4, 66.9],
  ['NVIDIA A100-SXM4-80GB', 312, 19.5],
  ['NVIDIA B200', 2250, 75],
  ['NVIDIA A10', 125, 31.2],
  ['NVIDIA A10G', 70, 31.5],
  ['NVIDIA GeForce RTX 5090', 209.5, 104.8],
  ['NVIDIA GeForce RTX 4090', 165.2, 82.6],
])('%s does %d TFLOP/s in bf16 and %d in f32', (name, half, f32) => {
  expect(peakFlopsOf(name, 'bf16')).toBe(half * 1e12);
  expect(peakFlopsOf(name, 'f16')).toBe(half * 1e12);
  expect(peakFlopsOf(name, 'f32')).toBe(f32 * 1e12);
});

test('returns null for unknown devices and for products that do not run', () => {
  for (const name of ['NVIDIA GeForce RTX 3090 Ti', 'NVIDIA GeForce RTX 4090 D', 'Some GPU']) {
    expect(peakFlopsOf(name, 'bf16')).toBeNull();
  }
  expect(peakFlopsOf('NVIDIA H200', 'i32')).toBeNull();
  expect(peakFlops(cpu(), 'bf16')).toBeNull();
  expect(() => peakFlops('cuda' as never, 'bf16')).toThrow('peakFlops: expected a device');
});

test('a bar computes the MFU from cost, peak and speed; a given MFU wins', () => {
  const out = stream();
  const bar = new ProgressBar({ total: 4, stream: out, flopsPerToken: 1e9, peakFlops: 4e14 });
  bar.update({ step: 1, tokensPerSecond: 1e5 });
  bar.update({ step: 2, tokensPerSecond: 1e5, mfu: 0.5 });
  bar.update({ step: 3 });
  const lines = out.text.split('\n');
  expect(lines[0]).toContain('MFU 25.0%');
  expect(lines[1]).toContain('MFU 50.0%');
  expect(lines[2]).not.toContain('MFU');
});

test('without a peak there is no MFU, and invalid numbers are refused', () => {
  const out = stream();
  const bar = new ProgressBar({ total: 1, stream: out, flopsPerToken: 1e9, peakFlops: null });
  bar.update({ step: 1, tokensPerSecond: 1e5 });
  expect(out.text).not.toContain('MFU');
  for (const peakFlops of [0, -1, Number.NaN, Number.POSITIVE_INFINITY]) {
    expect(() => new ProgressBar({ total: 1, flopsPerToken: 1, peakFlops })).toThrow(
      'ProgressBar peakFlops: expected a positive, finite number',
    );
  }
});
