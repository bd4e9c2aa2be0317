// The communication log: DeepSpeed's bandwidth formulas, totals and table.
import { bandwidth, CommsLogger } from '../../lib/comm/index.js';

const MB = 1_000_000;

test('bandwidths of 1 MB in 1 ms on 4 ranks, in Gbit/s', () => {
  const of = (kind: Parameters<typeof bandwidth>[0]) => bandwidth(kind, MB, 1, 4);
  expect(of('allReduce')).toEqual({ algbw: 16, busbw: 12 });
  expect(of('allGather')).toEqual({ algbw: 32, busbw: 24 });
  expect(of('reduceScatter')).toEqual({ algbw: 32, busbw: 24 });
  expect(of('allToAll')).toEqual({ algbw: 8, busbw: 6 });
  for (const kind of ['broadcast', 'reduce', 'send', 'recv'] as const) {
    expect(of(kind)).toEqual({ algbw: 8, busbw: 8 });
  }
});

test('totals are listed by operation and message size', () => {
  const logger = new CommsLogger({ profAll: false, ops: ['allReduce', 'broadcast'] });
  const record = { ranks: 4, label: 'x', milliseconds: 1 };
  logger.add({ ...record, kind: 'broadcast', bytes: 8 });
  logger.add({ ...record, kind: 'allReduce', bytes: MB });
  logger.add({ ...record, kind: 'allReduce', bytes: MB, milliseconds: 3 });
  logger.add({ ...record, kind: 'allReduce', bytes: 10 });
  logger.add({ ...record, kind: 'send', bytes: 10 });
  expect(logger.totals().map(({ kind, bytes, count }) => [kind, bytes, count])).toEqual([
    ['allReduce', 10, 1],
    ['allReduce', MB, 2],
    ['broadcast', 8, 1],
  ]);
  expect(logger.totals()[1]).toMatchObject({ totalMs: 4, meanMs: 2 });
  const [head, first] = logger.summary().split('\n');
  expect(head).toMatch(/^Comm\. Op +Message Size +Count +Total Latency\(ms\) +Avg Latency/);
  expect(first).toMatch(/^allReduce +10 B +1 +1\.00 +1\.00/);
  expect(logger.latencies()).toEqual([[1], [1, 3], [1]]);
  const [wide, , second] = logger.summary([[1], [0.5, 1], [1]]).split('\n');
  expect(wide).toMatch(/Total Straggler\(ms\) +Avg Straggler\(ms\) *$/);
  expect(second).toMatch(/ 2\.50 +1\.25 *$/);
  logger.reset();
  expect(logger.totals()).toEqual([]);
});
