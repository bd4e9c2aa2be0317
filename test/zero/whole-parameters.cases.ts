// Optimizers that need whole parameters train at stage 0 on two ranks; at stages 1 to 3 every rank refuses them.
import assert from 'node:assert/strict';
import { type Device, probeGpus } from '../../lib/runtime/device.js';
import { reportsOf, runRanks } from '../comm/ranks.js';
import type { TinyOptions } from '../e2e/tiny-training.js';
import type { Case } from '../support/case.js';
import type { Outcome, WholeJob } from './whole-process.js';

const setting = (type: 'Lamb' | 'Muon' | 'AdamW', stage: 0 | 1 | 2 | 3): TinyOptions => ({
  precision: 'fp32',
  offload: false,
  optimizer: { type, params: { lr: 1e-3 } },
  zero: { stage },
});

const REFUSED = (['Lamb', 'Muon'] as const).flatMap((type) =>
  ([1, 2, 3] as const).map((stage) => ({ type, stage })),
);
const TRAINED = [setting('Lamb', 0), setting('Muon', 0), setting('AdamW', 3)];

async function refused(device: Device): Promise<void> {
  const settings = [...REFUSED.map(({ type, stage }) => setting(type, stage)), ...TRAINED];
  const job: WholeJob = { device: device.kind, settings };
  const results = await runRanks('../zero/whole-process', 2, { job });
  const [first, second] = reportsOf<Outcome[]>(results) as [Outcome[], Outcome[]];
  assert.deepEqual(first, second);
  for (const [i, { type, stage }] of REFUSED.entries()) {
    const error = first[i] as Exclude<Outcome, string>;
    assert.equal(error.code, 'DS_CONFIG');
    assert.equal(error.op, 'zero_optimization.stage');
    assert.equal(error.expected, `0 with ${type} on 2 ranks: its update needs whole parameters`);
    assert.match(error.got, new RegExp(`^${stage}, which cuts \\S+ between ranks$`));
    assert.match(error.hint, /one rank.*AdamW/);
  }
  for (const trained of first.slice(REFUSED.length)) assert.equal(typeof trained, 'string');
}

export const cases: Case[] = [
  {
    name: 'two ranks: what needs whole parameters is refused at stages 1 to 3, by every rank',
    run: refused,
    skip: (device) =>
      device.kind === 'cpu' || probeGpus().deviceCount >= 2 ? null : 'needs 2 GPUs',
  },
];
