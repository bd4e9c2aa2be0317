// Tests that dropout on several ranks draws the mask of one rank with the whole micro-batch.
import assert from 'node:assert/strict';
import type { Device } from '../../lib/runtime/device.js';
import { reportsOf, runRanks } from '../comm/ranks.js';
import type { Case } from '../support/case.js';
import { distances } from './distances.js';
import type { DropoutJob, DroppedOut } from './dropout-process.js';

async function runOn(device: Device, ranks: number): Promise<DroppedOut[][]> {
  const job: DropoutJob = { device: device.kind, stages: [0, 2, 3] };
  return reportsOf<DroppedOut[]>(await runRanks('../zero/dropout-process', ranks, { job }));
}

/** One forward's mask of the global micro-batch: sample i of rank r is number i * ranks + r. */
function dealtBack(reports: readonly DroppedOut[][], run: number, forward: number): number[][] {
  const masks = reports.map((results) => results[run]?.masks[forward] as number[][]);
  const samples = masks.length * (masks[0] as number[][]).length;
  return Array.from(
    { length: samples },
    (_, i) => masks[i % masks.length]?.[Math.floor(i / masks.length)] as number[],
  );
}

async function ranksDrawAsOne(device: Device): Promise<void> {
  const alone = await runOn(device, 1);
  for (const ranks of [2, 4]) {
    const reports = await runOn(device, ranks);
    for (const [run, one] of (alone[0] as DroppedOut[]).entries()) {
      const several = reports[0]?.[run] as DroppedOut;
      const place = `${ranks} ranks, ${one.name}`;
      for (const forward of one.masks.keys()) {
        const mask = dealtBack(reports, run, forward);
        assert.deepEqual(mask, dealtBack(alone, run, forward), `${place}, forward ${forward}`);
        assert.ok(new Set(mask.map((row) => row.map(Math.sign).join())).size > 4, place);
      }
      // NCCL chooses the order of sums on four ranks, and the sums of the second step round.
      const isOrdered = device.kind === 'cpu' || ranks === 2;
      if (one.masks.length > 0 && isOrdered) assert.deepEqual(several.weights, one.weights, place);
      else assertClose(one, several, place);
    }
  }
}

function assertClose(droppedOut: DroppedOut, several: DroppedOut, place: string): void {
  const { worst, mean } = distances(droppedOut, several);
  assert.ok(worst < 1e-4 && mean < 1e-5, `${place}: worst ${worst}, mean ${mean}`);
}

export const cases: Case[] = [
  {
    name: '2 and 4 ranks drop out what one rank with the same global batch does',
    run: ranksDrawAsOne,
    gpus: 4,
  },
];
