// Parameter groups with ranks of their own: experts on each rank beside a layer of all ranks.
import assert from 'node:assert/strict';
import type { Device } from '../../lib/runtime/device.js';
import { reportsOf, runRanks } from '../comm/ranks.js';
import type { Case } from '../support/case.js';
import { configOf, Experts, engineOf, STAGES, type Trained, train } from './expert-groups.js';

const near = (a: readonly number[], b: readonly number[], label: string): void => {
  assert.equal(a.length, b.length);
  for (const [i, value] of a.entries()) {
    assert.ok(Math.abs(value - (b[i] as number)) < 1e-6, `${label}: ${value} is not ${b[i]}`);
  }
};

/**
 * Two ranks with one expert each train as one rank with both experts, except for the rounding of
 * sums. All stages have the same bits.
 */
async function asOnOneRank(device: Device): Promise<void> {
  const job = { device: device.kind };
  const results = await runRanks('../zero/expert-groups-process', 2, { job });
  const [first, second] = reportsOf<Trained[]>(results) as [Trained[], Trained[]];
  const engine = await engineOf(new Experts([0, 1]), configOf(0, 1));
  const trained = train(engine);
  engine.destroy();
  for (const stage of STAGES) {
    const [a, b] = [first[stage], second[stage]] as [Trained, Trained];
    assert.deepEqual([a.dense, a.norms], [b.dense, b.norms], `dense layer at stage ${stage}`);
    near(a.dense, trained.dense, `dense layer at stage ${stage}`);
    near(
      [a, b].flatMap(({ experts }) => experts.flat()),
      trained.experts.flat(),
      `experts at ${stage}`,
    );
    near(a.norms, trained.norms, `norms at stage ${stage}`);
    assert.deepEqual([a.dense, a.experts], [first[0]?.dense, first[0]?.experts]);
    assert.deepEqual(b.experts, second[0]?.experts);
  }
}

export const cases: Case[] = [
  { name: '2 ranks: experts of each rank train as on one rank', run: asOnOneRank, gpus: 2 },
];
