// Tests that GRPO on two ranks has the numbers of one rank, at all stages, and that faults end all.
import { reportsOf, runRanks } from '../comm/ranks.js';
import type { RolloutJob, RolloutReport, RolloutRun } from './grpo-ranks-process.js';

async function runOn(
  ranks: number,
  runs: RolloutRun[],
  mesh?: RolloutJob['mesh'],
): Promise<RolloutReport[][]> {
  const job: RolloutJob = { runs, ...(mesh && { mesh }) };
  return reportsOf<RolloutReport[]>(
    await runRanks('../trainer/grpo-ranks-process', ranks, { job }),
  );
}

const run = (
  batchSize: number,
  accumulation: number,
  stage: 0 | 1 | 2 | 3 = 0,
  more: object = {},
): RolloutRun => ({
  options: {
    batchSize,
    accumulation,
    maxSteps: 2,
    deepspeed: { zero_optimization: { stage } },
  },
  method: more,
});

function assertClose(got: RolloutReport, expected: RolloutReport, tolerance = 2e-6): void {
  expect(got.error).toBeNull();
  got.losses.forEach((loss, i) => {
    expect(Math.abs(loss - (expected.losses[i] as number))).toBeLessThan(tolerance);
  });
  expect(got.rewards.map((reward) => reward?.toFixed(6))).toEqual(
    expected.rewards.map((reward) => reward?.toFixed(6)),
  );
  for (const [name, values] of Object.entries(expected.weights ?? {})) {
    const localValues = got.weights?.[name] as number[];
    const off = Math.max(...values.map((value, i) => Math.abs(value - (localValues[i] as number))));
    expect([name, off < 50 * tolerance]).toEqual([name, true]);
  }
}

test('two ranks and accumulation equal one rank at each stage', async () => {
  const [[one, parts] = []] = await runOn(1, [run(16, 1), run(8, 2)]);
  assertClose(parts as RolloutReport, one as RolloutReport);
  const stages = [0, 1, 2, 3] as const;
  const both = await runOn(
    2,
    stages.map((stage) => run(8, 1, stage)),
  );
  for (const stage of stages) {
    const [first, second] = both.map((reports) => reports[stage] as RolloutReport);
    assertClose(first as RolloutReport, one as RolloutReport);
    expect(second?.rewards).toEqual(first?.rewards);
    const all = first?.completions.map((texts, i) => [...texts, ...(second?.completions[i] ?? [])]);
    expect(all?.map((texts) => texts.sort())).toEqual(
      one?.completions.map((texts) => [...texts].sort()),
    );
  }
});

test('the completions of a prompt may be on two ranks', async () => {
  const [[one] = []] = await runOn(1, [run(12, 1)]);
  const both = await runOn(2, [run(6, 1), { ...run(6, 1, 2), usesTool: true }]);
  const [[first, tools] = [], [second] = []] = both;
  expect(first?.error).toBeNull();
  expect(second?.rewards).toEqual(first?.rewards);
  expect(first?.completions.map(({ length }) => length)).toEqual([6, 6]);
  // The first completions of each prompt are those of one rank: 4 of the first, 2 of the second.
  expect(first?.completions[0]).toEqual(one?.completions[0]?.slice(0, 6));
  // Advantages sum to 0 over the groups of both ranks, so the first loss is 0.
  expect(Math.abs(first?.losses[0] as number)).toBeLessThan(1e-6);
  const [[whole] = []] = await runOn(1, [{ ...run(12, 1), usesTool: true }]);
  assertClose(tools as RolloutReport, whole as RolloutReport);
});

test('two ranks with different numbers of turns equal one rank, also at stage 3', async () => {
  const wants = (batchSize: number, stage: 0 | 3): RolloutRun => ({
    ...run(batchSize, 1, stage),
    usesTool: true,
  });
  const [[one] = []] = await runOn(1, [wants(16, 0)]);
  const both = await runOn(2, [wants(8, 3)]);
  const [first, second] = both.map(([report]) => report as RolloutReport);
  assertClose(first as RolloutReport, one as RolloutReport);
  const all = first?.completions.map((texts, i) => [...texts, ...(second?.completions[i] ?? [])]);
  expect(all?.map((texts) => texts.sort())).toEqual(
    one?.completions.map((texts) => [...texts].sort()),
  );
});

test('two ranks that share each layer equal one rank', async () => {
  const [[one] = []] = await runOn(1, [run(8, 1)]);
  const both = await runOn(2, [run(8, 1)], { tp: 2 });
  const [first, second] = both.map(([report]) => report as RolloutReport);
  expect(first?.error).toBeNull();
  expect(first?.completions).toEqual(one?.completions);
  expect(second?.completions).toEqual(one?.completions);
  first?.losses.forEach((loss, i) => {
    expect(loss).toBeCloseTo(one?.losses[i] as number, 5);
  });
});

test('an error of a reward function on one rank ends all ranks, by its row', async () => {
  const faulty = { ...run(8, 1, 2), fault: 'throw' as const };
  const both = await runOn(2, [faulty, run(8, 1, 2)]);
  const [first, second] = both.map(([report]) => report?.error);
  expect(second?.[0]).toBe('DS_DATA');
  expect(second?.[1]).toMatch(
    /reward even of row \d+: expected a reward, got the error "no judge"/,
  );
  expect(first?.[1]).toMatch(/sampling rollouts.*rank 1.*no judge|rank 1.*no judge/s);
  const again = both.map(([, report]) => report?.error);
  expect(again).toEqual([null, null]);
});

test('a rank that dies while it generates ends the others', async () => {
  const job: RolloutJob = { runs: [{ ...run(8, 1, 2), fault: 'kill' }] };
  const [first, second] = await runRanks('../trainer/grpo-ranks-process', 2, { job });
  expect(second?.signal).toBe('SIGKILL');
  const [report] = (first?.report ?? []) as RolloutReport[];
  expect(report?.error?.[0]).toBe('DS_COMM');
});
