// Methods on two ranks, and with accumulation, have the numbers of one rank and one micro-batch.
import { reportsOf, runRanks } from '../comm/ranks.js';
import type { MethodReport, MethodsJob } from './methods-process.js';

const run = async (ranks: number, job: MethodsJob): Promise<MethodReport[][]> =>
  reportsOf<MethodReport[]>(await runRanks('../trainer/methods-process', ranks, { job }));

const numberValues = (values: readonly number[]): Record<string, number> =>
  Object.fromEntries(values.map((value, i) => [`step ${i + 1}`, value]));

function expectClose(
  got: Record<string, number>,
  expected: Record<string, number>,
  place: string,
): void {
  for (const [name, value] of Object.entries(expected)) {
    const off = Math.abs((got[name] as number) - value);
    expect([place, name, off]).toEqual([place, name, expect.any(Number)]);
    expect(off).toBeLessThan(2e-4 * Math.max(1, Math.abs(value)));
  }
}

test('two ranks, and accumulation, equal one micro-batch', async () => {
  const [[one = []], [several = []], [first = [], second = []]] = [
    await run(1, { batchSize: 4, accumulation: 1 }),
    await run(1, { batchSize: 2, accumulation: 2 }),
    await run(2, { batchSize: 2, accumulation: 1 }),
  ] as [MethodReport[][], MethodReport[][], MethodReport[][]];
  expect(second).toEqual(first);
  expect(one.length).toBe(7);
  for (const [i, { name, losses, metrics, evaluation }] of one.entries()) {
    for (const other of [several[i], first[i]] as MethodReport[]) {
      expectClose(numberValues(other.losses), numberValues(losses), `${name}, losses`);
      expectClose(other.metrics.at(-1) ?? {}, metrics.at(-1) ?? {}, `${name}, metrics`);
      // Evaluations compute z for each batch.
      if (name !== 'kto with z') expectClose(other.evaluation, evaluation, `${name}, evaluation`);
    }
  }
  expect(first[5]?.metrics[2]?.kl).toBeGreaterThan(0);
});
