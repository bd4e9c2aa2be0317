// Tests that if initialize() throws on one of two ranks, the other rank gets the error at once, and
// both may retry.
import { reportsOf, runRanks } from '../comm/ranks.js';
import type { RefusedJob } from './refused-ranks-process.js';

const shared = { tensor_parallel: { autotp_size: 2 } };
const attempts: RefusedJob['attempts'] = [
  [shared, {}],
  [{}, shared],
  [{}, { optimizer: { type: 'AdamW', params: { lr: -1 } } }],
  [shared, shared],
  [{ gradient_clipping: 1 }, { gradient_clipping: 2 }],
  [{}, {}],
];

test('an error on one rank before the agreement reaches the other rank', async () => {
  const job: RefusedJob = { attempts };
  const results = await runRanks('../engine/refused-ranks-process', 2, { job });
  const [first = [], second = []] = reportsOf<string[]>(results);
  const size = /^DS_CONFIG tensor_parallel.autotp_size: expected 1, the ranks on .* got 2\. Pass/;
  const reportOf = (rank: number, of: string) =>
    new RegExp(`^DS_COMM initialize: expected every rank .*, got rank ${rank} failed: ${of}`);
  const differ =
    /gradient_clipping: expected the same on every rank: 1 as on rank 0, got 2 on rank 1/;
  const size2 = 'DS_CONFIG \\| tensor_parallel.autotp_size: expected 1, .* got 2';
  const patterns: [RegExp, RegExp][] = [
    [size, reportOf(0, size2)],
    [reportOf(1, size2), size],
    [reportOf(1, 'DS_'), /^DS_\w+ .*lr/],
    [size, size],
    [differ, differ],
    [/^fine$/, /^fine$/],
  ];
  patterns.forEach(([ofFirst, ofSecond], i) => {
    expect(first[i]).toMatch(ofFirst);
    expect(second[i]).toMatch(ofSecond);
  });
});
