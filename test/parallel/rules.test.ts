// Models of one's own, cut by the rules of tensor_parallel.partition_config.
import { reportsOf, runRanks } from '../comm/ranks.js';

const RULES = [
  { patterns: ['.*\\.up\\.weight$'] },
  { patterns: ['.*\\.down\\.weight$'], partition_type: 'row' },
];
const by = (layer_specs: object[]) => ({ autotp_size: 2, partition_config: { layer_specs } });

test('rules split layers, keep layers whole, and report rules without a match', async () => {
  const sections = [
    by(RULES),
    by([{ patterns: ['b\\.'], partition_type: 'skip' }, ...RULES]),
    { autotp_size: 2 },
    by([{ patterns: ['nothing'] }]),
    { autotp_size: 3 },
  ];
  const [whole] = reportsOf<unknown[]>(
    await runRanks('../parallel/rules-process', 1, { job: [{}] }),
  ) as [[{ losses: number[] }]];
  const results = await runRanks('../parallel/rules-process', 2, { job: sections });
  for (const [cut, half, ...errors] of reportsOf<unknown[]>(results)) {
    for (const [report, rows] of [
      [cut, [8, 8]],
      [half, [8, 16]],
    ] as const) {
      const { losses, ...rest } = report as { losses: number[]; rows: number[] };
      expect(rest.rows).toEqual(rows);
      losses.forEach((loss, i) => void expect(loss).toBeCloseTo(whole[0].losses[i] as number, 5));
    }
    expect(errors).toEqual([
      expect.stringMatching(
        /^DS_CONFIG tensor_parallel\.autotp_size: expected a model of nn\.models, .* got a Net\. Set tensor_parallel/,
      ),
      expect.stringMatching(
        /layer_specs\.0: expected patterns that match .*, got nothing\. Examples of names/,
      ),
      expect.stringMatching(/autotp_size: expected 2, the ranks on the mesh's axis tp, got 3\./),
    ]);
  }
});

test('a layer that joins two projections is split in each of them', async () => {
  const fused = true;
  const down = { patterns: ['down\\.weight$'], partition_type: 'row' };
  const both = (more: object) => ({
    fused,
    ...by([{ patterns: ['both\\.weight$'], ...more }, down]),
  });
  const [[whole]] = reportsOf<{ losses: number[] }[]>(
    await runRanks('../parallel/rules-process', 1, { job: [{ fused }] }),
  ) as [[{ losses: number[] }]];
  const job = [both({ shape: [2, -1] }), both({})];
  const results = await runRanks('../parallel/rules-process', 2, { job });
  for (const [cut, wrong] of reportsOf<{ losses: number[]; rows: number[] }[]>(results)) {
    expect(cut?.rows).toEqual([16]);
    cut?.losses.forEach((loss, i) => void expect(loss).toBeCloseTo(whole.losses[i] as number, 5));
    // Cut as one layer, a rank would have the factors of nothing that it has.
    expect(Math.abs((wrong?.losses[0] as number) - (whole.losses[0] as number))).toBeGreaterThan(
      1e-4,
    );
  }
});
