// grpo() on two ranks: a rank without prompts samples those of a slow rank, and sampling ahead.
import { reportsOf, runRanks } from '../comm/ranks.js';
import type { RolloutJob, RolloutReport, RolloutRun } from './grpo-ranks-process.js';

async function runOn(ranks: number, job: RolloutJob): Promise<RolloutReport[][]> {
  return reportsOf<RolloutReport[]>(
    await runRanks('../trainer/grpo-ranks-process', ranks, { job }),
  );
}

const run = (stage: 0 | 1 | 2 | 3, method: object, more: Partial<RolloutRun> = {}): RolloutRun => ({
  options: { batchSize: 16, maxSteps: 2, deepspeed: { zero_optimization: { stage } } } as never,
  // Exact log-probabilities do not depend on the sequences beside them.
  method: { maxSequences: 4, exactRollouts: true, ...method },
  ...more,
});

test('a slow rank changes who samples, and no result', async () => {
  const stages = [0, 3] as const;
  const runs = stages.flatMap((stage) => [
    run(stage, {}),
    run(stage, { workStealing: true }, { isSlow: true }),
  ]);
  const both = await runOn(2, { runs });
  for (const [i] of stages.entries()) {
    for (const rank of [0, 1]) {
      const [own, stolen] = [both[rank]?.[2 * i], both[rank]?.[2 * i + 1]];
      expect(stolen?.error).toBeNull();
      expect(stolen?.completions).toEqual(own?.completions);
      expect(stolen?.losses).toEqual(own?.losses);
      expect(stolen?.rewards).toEqual(own?.rewards);
      expect(stolen?.weights).toEqual(own?.weights);
    }
    // Each rank has 4 prompts of 2 updates; the fast one samples some of the slow one.
    const [fast, slow] = [both[0]?.[2 * i + 1], both[1]?.[2 * i + 1]] as RolloutReport[];
    expect((fast?.sampled ?? 0) + (slow?.sampled ?? 0)).toBe(16);
    expect(fast?.sampled).toBeGreaterThan(8);
    for (const ratio of fast?.stolen ?? []) expect(ratio).toBeGreaterThan(0);
  }
});

test('the completions of a prompt on two ranks may be sampled by either', async () => {
  const spread = { options: { batchSize: 6, maxSteps: 2 } };
  const [[own, stolen] = []] = await runOn(2, {
    runs: [run(0, {}, spread), run(0, { workStealing: true }, { ...spread, isSlow: true })],
  });
  expect(stolen?.error).toBeNull();
  expect(stolen?.completions).toEqual(own?.completions);
  expect(stolen?.weights).toEqual(own?.weights);
});

test('an error while a rank samples ends all ranks', async () => {
  const faulty = run(0, { workStealing: true, sampling: { maxNewTokens: 6 } }, { fault: 'throw' });
  const both = await runOn(2, { runs: [faulty, run(0, { workStealing: true })] });
  expect(both.map(([report]) => report?.error?.[1])).toEqual([
    expect.stringMatching(/judging rollouts on rank 1: reward even of row \d+/),
    expect.stringMatching(/reward even of row \d+: expected a reward, got the error "no judge"/),
  ]);
  expect(both.map(([, report]) => report?.error)).toEqual([null, null]);
});

test('ranks that share each layer, and tools, are refused', async () => {
  const options = { batchSize: 8, maxSteps: 1 };
  const method = { workStealing: true, exactRollouts: false };
  const layers = await runOn(2, { runs: [run(0, method, { options })], mesh: { tp: 2 } });
  expect(layers[0]?.[0]?.error?.[1]).toMatch(
    /grpo workStealing: expected no tensor parallelism, got ranks that share a model/,
  );
  const [[tool] = []] = await runOn(1, { runs: [run(0, method, { options, usesTool: true })] });
  expect(tool?.error?.[1]).toMatch(/grpo workStealing: expected no tool/);
});

test('two ranks that sample ahead equal one rank at each stage', async () => {
  const ahead = { maxStaleness: 1, exactRollouts: false, maxSequences: 32 };
  const steps = (batchSize: number, stage: 0 | 1 | 2 | 3): RolloutRun => ({
    ...run(stage, ahead),
    options: { batchSize, maxSteps: 3, deepspeed: { zero_optimization: { stage } } } as never,
  });
  const [[one] = []] = await runOn(1, { runs: [steps(16, 0)] });
  const stages = [0, 1, 2, 3] as const;
  const both = await runOn(2, { runs: stages.map((stage) => steps(8, stage)) });
  for (const stage of stages) {
    const [first, second] = both.map((reports) => reports[stage] as RolloutReport);
    expect(first?.error).toBeNull();
    first?.losses.forEach((loss, i) => {
      expect(Math.abs(loss - (one?.losses[i] as number))).toBeLessThan(1e-5);
    });
    const all = first?.completions.map((texts, i) => [...texts, ...(second?.completions[i] ?? [])]);
    expect(all?.map((texts) => texts.sort())).toEqual(
      one?.completions.map((texts) => [...texts].sort()),
    );
  }
});
