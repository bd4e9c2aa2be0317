// Runs the cases of the compressed exchange on the CPU, and tests the sizes of a layout without
// ranks.
import { CompressedLayout } from '../../lib/comm/index.js';
import { testOnCpu } from '../support/jest-cases.js';
import { cases } from './exchange.cases.js';

testOnCpu('compressed exchange', cases);

test('a layout cuts segments at owners, and counts bytes', () => {
  const layout = new CompressedLayout(256, 2, [
    { start: 0, numel: 3 },
    { start: 64, numel: 100 },
  ]);
  expect(layout.chunks).toEqual([
    { starts: [0, 64, 128], counts: [3, 64] },
    { starts: [0, 128], counts: [36] },
  ]);
  expect(layout.messageBytes).toBe(2 * 8 + 128 / 8);
  expect(layout.bytesSent).toBe(2 * layout.messageBytes);
});

test('a part without a segment gets an empty segment', () => {
  const { chunks: parts } = new CompressedLayout(192, 3, [{ start: 70, numel: 1 }]);
  expect(parts[0]).toEqual({ starts: [0, 64], counts: [0] });
  expect(parts[1]).toEqual({ starts: [0, 6, 64], counts: [0, 1] });
});

test('parts begin and end at whole bytes', () => {
  expect(() => new CompressedLayout(100, 2, [])).toThrow(/multiple of 128 elements/);
});

/**
 * GPT-2 1558M as one vector: 2 * (W - 1) * (n / (8 W) + 8 segments of a part) bytes, an eighth of n
 * for W = 2.
 */
test('the exchange of 1558M parameters on 2 ranks takes 195 MB a rank', () => {
  const numel = Math.ceil(1_557_611_200 / 128) * 128;
  const layers = Array.from({ length: 580 }, (_, i) => ({
    start: Math.floor((i / 580) * (numel / 64)) * 64,
    numel: 64 * Math.floor(numel / 64 / 580),
  }));
  const { bytesSent, levelBytes } = new CompressedLayout(numel, 2, layers);
  expect(bytesSent).toBe(numel / 8 + 2 * levelBytes);
  expect(Math.round(bytesSent / 1e6)).toBe(195);
});
