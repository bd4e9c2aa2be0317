// A model in stages trains as the same model on one rank, bit for bit, by every schedule.
import assert from 'node:assert/strict';
import { type Device, probeGpus } from '../../lib/runtime/device.js';
import { reportsOf, runRanks } from '../comm/ranks.js';
import type { Case } from '../support/case.js';
import type { Leg, LegReport, PipelineJob } from './pipeline-process.js';

async function run(device: Device, ranks: number, job: Omit<PipelineJob, 'device'>) {
  const whole: PipelineJob = { device: device.kind, ...job };
  const results = await runRanks('../pipe/pipeline-process', ranks, { job: whole });
  return reportsOf<LegReport[]>(results);
}

const legs: Leg[] = [
  ...[1, 3, 4, 8].flatMap((micros): Leg[] => [
    { schedule: '1f1b', micros, stage: 0, precision: 'fp32' },
    { schedule: 'gpipe', micros, stage: 0, precision: 'bf16' },
    { schedule: 'interleaved', micros, stage: 1, precision: 'fp32' },
  ]),
  { schedule: '1f1b', micros: 3, stage: 1, precision: 'fp16' },
  { schedule: '1f1b', micros: 3, stage: 1, precision: 'bf16', offload: true },
  { schedule: '1f1b', micros: 4, stage: 0, precision: 'fp32', checkpoint: 2 },
];

/** `pp` stages times `dp` data ranks equal `dp` data ranks. */
async function equal(device: Device, pp: number, dp: number, wanted: Leg[]): Promise<void> {
  const alone = await run(device, dp, { pp: 1, legs: wanted });
  const staged = await run(device, pp * dp, { pp, legs: wanted });
  for (const [i, leg] of wanted.entries()) {
    const place = JSON.stringify(leg);
    for (let d = 0; d < dp; ++d) {
      const expected = alone[d]?.[i] as LegReport;
      const parts = Array.from({ length: pp }, (_, s) => staged[s * dp + d]?.[i] as LegReport);
      const weights = Object.assign({}, ...parts.map((part) => part.weights));
      assert.deepEqual(weights, expected.weights, place);
      const count = parts.reduce((sum, part) => sum + Object.keys(part.weights).length, 0);
      assert.equal(count, Object.keys(expected.weights).length, `${place}: each on one stage`);
      for (const part of parts) {
        assert.deepEqual(part.losses, expected.losses, place);
        assert.deepEqual(part.norms, expected.norms, place);
        assert.equal(part.evaluated, expected.evaluated, place);
        assert.equal(part.samples, expected.samples, place);
      }
    }
  }
}

const skipBelow =
  (gpus: number) =>
  ({ kind }: Device): string | null =>
    kind === 'cpu' || probeGpus().deviceCount >= gpus ? null : `needs ${gpus} GPUs`;

export const cases: Case[] = [
  {
    name: 'two stages equal one rank: weights, losses, norms and evaluation',
    run: (device) => equal(device, 2, 1, legs),
    skip: skipBelow(2),
  },
  {
    name: 'four stages equal one rank',
    run: (device) =>
      equal(
        device,
        4,
        1,
        legs.filter(({ schedule }) => schedule !== 'interleaved'),
      ),
    skip: skipBelow(4),
  },
  {
    name: 'two stages of two data ranks equal two data ranks',
    run: (device) =>
      equal(
        device,
        2,
        2,
        legs.filter(({ micros }) => micros === 3),
      ),
    skip: skipBelow(4),
  },
];
