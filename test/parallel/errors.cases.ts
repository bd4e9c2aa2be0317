// Tests that an error on one rank of a model-parallel group reaches the other ranks at once.
import assert from 'node:assert/strict';
import type { Device } from '../../lib/runtime/device.js';
import { reportsOf, runRanks } from '../comm/ranks.js';
import type { Case } from '../support/case.js';
import type { ErrorLeg, ErrorsJob } from './errors-process.js';

async function run({ kind }: Device, legs: ErrorLeg[]): Promise<string[][]> {
  const job: ErrorsJob = { device: kind, legs };
  return reportsOf(await runRanks('../parallel/errors-process', 2, { job }));
}

const CUTS: readonly Pick<ErrorLeg, 'mesh' | 'stage' | 'mixture'>[] = [
  { mesh: { tp: 2 }, stage: 0 },
  { mesh: { tp: 2 }, stage: 0, mixture: true },
  { mesh: { sp: 2 }, stage: 0 },
  { mesh: {}, stage: 3 },
];

async function checkReports(device: Device): Promise<void> {
  const legs = CUTS.flatMap((cut): ErrorLeg[] => [
    { ...cut, at: 'forward', rank: 1 },
    { ...cut, at: 'backward', rank: 0 },
  ]);
  const reports = await run(device, legs);
  for (const [i, leg] of legs.entries()) {
    const culprit = leg.rank as number;
    const place = JSON.stringify(leg);
    assert.equal(reports[culprit]?.[i], 'Error: a layer of mine', place);
    assert.match(
      String(reports[1 - culprit]?.[i]),
      new RegExp(
        `^DS_COMM .*, collective \\d+ of .*: expected every rank to take part, got rank ${culprit} failed: Error: a layer of mine\\.`,
      ),
      place,
    );
  }
}

/** Ranks that all skip the same batch train on, because no rank waits. */
async function metByAll(device: Device): Promise<void> {
  const legs = CUTS.map((cut): ErrorLeg => ({ ...cut, at: 'forward', rank: 'all' }));
  const [first, second] = await run(device, legs);
  assert.deepEqual(second, first);
  for (const report of first ?? []) {
    assert.match(report, /^Error: a layer of mine, 1 steps, then [\d.]+$/);
  }
}

/** Each case runs on two devices. */
export const cases: readonly Case[] = [
  { name: 'an error of one rank reaches the others', run: checkReports, gpus: 2 },
  { name: 'an error that all ranks meet with', run: metByAll, gpus: 2 },
];
