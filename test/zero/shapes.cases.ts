// Sharded weights under models and training loops of every shape: the same weights as without a
// stage, and no leaks.
import assert from 'node:assert/strict';
import type { Device } from '../../lib/runtime/device.js';
import { reportsOf, runRanks } from '../comm/ranks.js';
import type { Case } from '../support/case.js';
import type { ShapeResult, ShapesJob } from './shapes-process.js';

async function shapesAgree(device: Device): Promise<void> {
  const job: ShapesJob = { device: device.kind };
  const reports = reportsOf<ShapeResult[]>(await runRanks('../zero/shapes-process', 2, { job }));
  const [first] = reports as [ShapeResult[], ShapeResult[]];
  const problems: string[] = [];
  for (const [rank, results] of reports.entries()) {
    for (const result of results) {
      const place = `${result.scenario}: ${result.setting} on rank ${rank}`;
      if (result.error) problems.push(`${place}: ${result.error}`);
      const reference = first.find(
        ({ scenario, stage }) =>
          scenario === result.scenario && stage === (result.inPairs && result.stage >= 2 ? 2 : 0),
      ) as ShapeResult;
      if (result.hash !== reference.hash) problems.push(`${place}: other weights`);
      const expected = results.find(
        ({ scenario, stage }) => scenario === reference.scenario && stage === reference.stage,
      );
      if (result.values.join() !== expected?.values.join())
        problems.push(`${place}: ${result.values} instead of ${expected?.values}`);
      if (result.leaked !== expected?.leaked)
        problems.push(`${place}: ${result.leaked} tensors left, not ${expected?.leaked}`);
    }
  }
  assert.equal(problems.join('\n'), '');
}

export const cases: Case[] = [
  { name: '2 ranks: models of every shape agree at every stage', run: shapesAgree, gpus: 2 },
];
