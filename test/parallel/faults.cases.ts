// Tests that faults in model parallelism raise an error with the cause on every rank, without a
// deadlock.
import assert from 'node:assert/strict';
import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import type { MeshOptions } from '../../lib/comm/index.js';
import type { Device } from '../../lib/runtime/device.js';
import { runRanks } from '../comm/ranks.js';
import type { Case } from '../support/case.js';
import { run } from './engine.cases.js';
import type { EngineJob, Leg, LegReport } from './engine-process.js';

/** Each leg on tp 2 x dp 2, and the error on all ranks. */
const REFUSED: readonly [Leg, RegExp][] = [
  [
    { stage: 1, misled: { rank: 3 } },
    /^DS_COMM engine\.step: .*the same batches on ranks that differ only on tp, got other inputs on rank 3 than on rank 2 in step 1\./,
  ],
  [
    { stage: 3, misled: { rank: 1, after: 2 } },
    /^DS_COMM engine\.step: .*the same batches on ranks that differ only on tp, got other inputs on rank 1 than on rank 0 in step 3\./,
  ],
  [
    { stage: 0, wrong: { rank: 3, what: 'shape' } },
    /^DS_ARGUMENT initialize, parameter \d+: .*on every rank: layers\.3\.down \[8, 12\] divided over tp,.* as on rank 0, got layers\.3\.down \[8, 13\].* on rank 3\./,
  ],
  [
    { stage: 0, wrong: { rank: 3, what: 'place' } },
    /^DS_ARGUMENT initialize, parameter \d+: .*same coordinate on tp: layers\.3\.down \[8, 6\] at \[0, 6\] as on rank 1, got layers\.3\.down \[8, 6\] at \[0, 1\] on rank 3\./,
  ],
  [
    { stage: 0, changes: 1 },
    /^DS_ARGUMENT GatheredParameters modifierRank: .*layers\.1\.up, divided over ranks/,
  ],
  ...(['Lamb', 'Muon', 'Adafactor'] as const).map((type): [Leg, RegExp] => [
    { stage: 1, optimizer: { type, params: { lr: 1e-3 } } as Leg['optimizer'] },
    new RegExp(
      `^DS_CONFIG optimizer ${type}: expected an elementwise optimizer with tensor parallelism`,
      'i',
    ),
  ]),
];

async function checkRefusals(device: Device): Promise<void> {
  const legs = REFUSED.map(([leg]) => leg);
  const reports = await run(device, 4, { mesh: { tp: 2 }, legs });
  for (const [i, [leg, message]] of REFUSED.entries()) {
    for (const [rank, own] of reports.entries()) {
      assert.match(String(own[i]?.error), message, `${JSON.stringify(leg)} on rank ${rank}`);
    }
  }
}

/** The engine compares inputs of the first stage and labels of the last one in every step. */
async function otherStages(device: Device): Promise<void> {
  for (const [rank, other] of [
    [0, 1],
    [1, 0],
  ] as const) {
    const legs: Leg[] = [{ stage: 0, misled: { rank, after: 2 } }];
    for (const [report] of await run(device, 2, { mesh: { pp: 2 }, legs })) {
      assert.match(
        String(report?.error),
        /^DS_COMM engine\.step: .*ranks that differ only on pp, got other inputs on rank 1 than on rank 0 in step 3\./,
        `rank ${rank} apart from ${other}`,
      );
    }
  }
}

/** Two ranks have the same columns, and the other columns are missing. */
async function incomplete(device: Device): Promise<void> {
  const legs: Leg[] = [{ stage: 0, wrong: { rank: 1, what: 'place' } }];
  for (const [report] of await run(device, 2, { mesh: { tp: 2 }, legs })) {
    assert.match(
      String(report?.error),
      /^DS_ARGUMENT initialize, layers\.3\.down: expected parts of 2 ranks on tp that together are \[8, 12\], got no part with \[0, 7\]\./,
    );
  }
}

/** All remaining ranks throw the same error, which names the culprit. */
async function checkBroken(
  device: Device,
  leg: Leg,
  culprit: number,
  message: RegExp,
): Promise<void> {
  const job: EngineJob = { device: device.kind, mesh: { tp: 2 }, legs: [leg] };
  const results = await runRanks('../parallel/engine-process', 4, { job });
  for (const { rank, code, report, stderr } of results) {
    if (rank === culprit && code === 3) continue;
    assert.equal(code, 0, stderr);
    assert.match(String((report as LegReport[])[0]?.error), message, `rank ${rank}`);
  }
}

/**
 * SIGTERM to one rank ends all ranks after the same step; a run resumes from their checkpoint bit
 * for bit.
 */
async function checkStopped(device: Device, ranks: number, mesh: MeshOptions): Promise<void> {
  const root = mkdtempSync(join(tmpdir(), 'ds-stopped-'));
  const steps = 8;
  const culprit = ranks - 1;
  try {
    const legs: Leg[] = [
      { stage: 1, steps },
      { stage: 1, steps, stops: culprit, save: root },
      { stage: 1, steps, from: root },
    ];
    const reports = await run(device, ranks, { mesh, legs });
    const [, first] = reports[0] as LegReport[];
    for (const [rank, [whole, stop, rest]] of reports.entries()) {
      assert.ok(whole && stop && rest && !whole.error && !stop.error && !rest.error, `${rank}`);
      assert.equal(stop.losses.length, first?.losses.length);
      assert.ok(stop.losses.length > 2 && stop.losses.length < steps, `${stop.losses.length}`);
      assert.deepEqual([...stop.losses, ...rest.losses], whole.losses);
      assert.deepEqual([...stop.norms, ...rest.norms], whole.norms);
      assert.deepEqual(rest.weights, whole.weights);
    }
  } finally {
    rmSync(root, { recursive: true, force: true });
  }
}

export const cases: Case[] = [
  {
    name: 'other batches, models, parts and optimizers that need whole parameters',
    run: checkRefusals,
    gpus: 4,
  },
  {
    name: 'SIGTERM to one rank of tp 2',
    run: (device) => checkStopped(device, 2, { tp: 2 }),
    gpus: 2,
  },
  {
    name: 'SIGTERM to one rank of pp 2',
    run: (device) => checkStopped(device, 2, { pp: 2 }),
    gpus: 2,
  },
  { name: 'other batches in stages of a pipeline', run: otherStages, gpus: 2 },
  { name: 'parameters with incomplete parts', run: incomplete, gpus: 2 },
  {
    name: 'a batch of another shape',
    run: (device) =>
      checkBroken(
        device,
        { stage: 0, misled: { rank: 3, shape: true } },
        3,
        /^DS_COMM .*rank [23]/,
      ),
    gpus: 4,
  },
  {
    name: 'a rank that dies',
    run: (device) => checkBroken(device, { stage: 2, dies: 3 }, 3, /^DS_COMM .*rank 3/),
    gpus: 4,
  },
];
