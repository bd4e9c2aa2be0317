// Tests two ranks with different memory that leave stage and offload to the plan. The smaller
// memory counts, and both choose or refuse the same.
import { reportsOf, runRanks } from '../comm/ranks.js';
import type { PlannedJob, PlannedRank, PlannedReport } from './planned-ranks-process.js';

const MIB = 2 ** 20;
const zero = { stage: 'auto', offload_optimizer: 'auto', offload_param: 'auto' } as const;
const rank = (mebibytes: number, localZeroConfig: PlannedRank['zero'] = zero): PlannedRank => ({
  zero: localZeroConfig,
  cap: mebibytes * MIB,
});

/**
 * f32 weights, gradients and moments of 1 MiB each: 4.2 MiB with a margin, and the same amount
 * free.
 */
const attempts: PlannedJob['attempts'] = [
  [rank(64), rank(64)],
  [rank(64), rank(7.5)],
  [rank(7.5), rank(64)],
  [rank(64, { stage: 1 }), rank(64, { stage: 1 })],
  [rank(64), rank(1)],
  [rank(64), rank(64, { stage: 0 })],
];

test('every rank plans with the least memory of all ranks', async () => {
  const job: PlannedJob = { attempts };
  const reports = reportsOf<PlannedReport>(
    await runRanks('../engine/planned-ranks-process', 2, { job }),
  );
  for (const { stages, losses, errors } of reports) {
    expect(errors.slice(0, 4)).toEqual([null, null, null, null]);
    expect(stages).toEqual([0, 1, 1, 1, null, null]);
    expect(losses[1]).toEqual(losses[3]);
    expect(losses[2]).toEqual(losses[3]);
    expect(errors[4]).toMatch(
      /^DS_OUT_OF_MEMORY .* of the memory of cpu \(.*\) for each rank by the plan.*got 1\.0 MiB/,
    );
    expect(errors[5]).toMatch(
      /^DS_CONFIG zero_optimization\.stage: expected the same on every rank: "auto" as on rank 0, got 0 on rank 1/,
    );
  }
  const [first, second] = reports.map(({ lines }) => lines);
  expect(first).toEqual([
    expect.stringMatching(
      /^zero_optimization: stage 0, .* of 64\.0 MiB of the memory of cpu, .* for each rank, before activations\n$/,
    ),
    expect.stringMatching(/^zero_optimization: stage 1, .* of 7\.5 MiB of the memory of cpu/),
    expect.stringMatching(/^zero_optimization: stage 1, .* of 7\.5 MiB of the memory of cpu/),
  ]);
  expect(second).toEqual([]);
});
