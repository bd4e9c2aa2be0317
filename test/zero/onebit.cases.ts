// Tests 1-bit optimizers on several ranks: formulas, warm-up, checkpoints, precisions, and equal
// weights on all ranks.
import assert from 'node:assert/strict';
import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { type Device, probeGpus } from '../../lib/runtime/device.js';
import { reportsOf, runRanks } from '../comm/ranks.js';
import type { Case } from '../support/case.js';
import type { OneBitJob, OneBitReport } from './onebit-process.js';

async function onRanks(ranks: number, job: OneBitJob): Promise<OneBitReport[]> {
  return reportsOf<OneBitReport>(await runRanks('../zero/onebit-process', ranks, { job }));
}

const sum = (values: readonly number[]): number => values.reduce((total, x) => total + x, 0);

function requireFormulas({ distances, kinds, ratios }: OneBitReport): void {
  assert.equal(Object.keys(distances).length, 8);
  for (const [name, worst] of Object.entries(distances)) {
    assert.ok(worst < 2e-5, `${name}: ${worst} from its formula`);
  }
  assert.deepEqual([...new Set(kinds)].sort(), ['agree', 'gradient', 'local', 'variance']);
  assert.ok(ratios < 1e-4, `trust ratios: ${ratios} from their formula`);
}

function requireAgreement(reports: readonly OneBitReport[]): void {
  const [first] = reports as [OneBitReport];
  for (const { equal, hashes, settled } of reports) {
    for (const [what, one, other] of equal) assert.equal(one, other, what);
    assert.deepEqual(hashes, first.hashes);
    assert.equal(settled, first.settled);
  }
  const apart = new Set(reports.map(({ adrift }) => adrift));
  assert.equal(apart.size, reports.length, 'ranks between two agreements');
}

function requireTraining({ losses, skipped }: OneBitReport): void {
  for (const [name, list] of Object.entries(losses)) {
    assert.ok(list.every(Number.isFinite), `${name}: ${list}`);
    const [first, last] = [list.slice(0, 4), list.slice(-4)];
    assert.ok(sum(last) < sum(first), `${name} does not learn: ${list}`);
  }
  for (const [name, count] of Object.entries(skipped)) {
    if (name.endsWith('fp16')) assert.ok(count > 0 && count < 24, `${name} skipped ${count}`);
    else assert.equal(count, 0, name);
  }
}

/**
 * The error feedback for the next average is the same on 3 ranks as on the 2 ranks that saved it.
 */
function requireSameErrors(saved: readonly OneBitReport[], loaded: readonly OneBitReport[]): void {
  for (const [name, errors] of Object.entries(saved[0]!.errors)) {
    for (let i = 0; i < errors.length - 1; ++i) {
      const mean = (all: readonly OneBitReport[]): number =>
        sum(all.map((oneBitReport) => oneBitReport.errors[name]![i]!)) / all.length;
      const [before, after] = [mean(saved), mean(loaded)];
      assert.ok(Math.abs(before - after) < 1e-6 + 1e-4 * Math.abs(before), `${name} ${i}`);
    }
    const own = (all: readonly OneBitReport[]) =>
      sum(all.map((oneBitReport) => oneBitReport.errors[name]!.at(-1)!));
    assert.ok(Math.abs(own(saved) - own(loaded)) < 1e-4, `${name}: owners' errors`);
    assert.ok(
      errors.some((x) => x !== 0),
      `${name} has no error`,
    );
  }
  const [first] = loaded as [OneBitReport];
  for (const { hashes, losses } of loaded) {
    assert.deepEqual(hashes, first.hashes);
    assert.ok(Object.values(losses).flat().every(Number.isFinite));
  }
}

async function train({ kind }: Device): Promise<void> {
  const dir = mkdtempSync(join(tmpdir(), 'ds-onebit-'));
  try {
    const reports = await onRanks(2, { kind, dir });
    for (const report of reports) {
      requireFormulas(report);
      requireTraining(report);
    }
    requireAgreement(reports);
    if (kind === 'cuda' && probeGpus().deviceCount < 3) return;
    requireSameErrors(reports, await onRanks(3, { kind, dir, loads: true }));
  } finally {
    rmSync(dir, { recursive: true, force: true });
  }
}

export const cases: Case[] = [
  {
    name: '1-bit optimizers follow their formulas on 2 ranks, resume there and on 3',
    run: train,
    gpus: 2,
  },
];
