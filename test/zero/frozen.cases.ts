// Frozen parameters that are sharded: checkpoints with and without them, on other worlds, and as
// whole parameters.
import assert from 'node:assert/strict';
import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { nn } from '../../lib/index.js';
import type { Device } from '../../lib/runtime/device.js';
import { reportsOf, runRanks } from '../comm/ranks.js';
import type { Case } from '../support/case.js';
import { comingAndGoing, fingerprint, frozenEngine, train } from './frozen-engine.js';
import type { FrozenJob, FrozenReport } from './frozen-process.js';
import { AdaptedBlock, Net } from './shape-models.js';

async function onOtherWorlds(device: Device): Promise<void> {
  const dir = mkdtempSync(join(tmpdir(), 'ds-frozen-'));
  try {
    const zero = { ...comingAndGoing, offload_param: { device: 'cpu' as const } };
    const engine = await frozenEngine(7, zero, { device });
    train(engine, 1);
    const texts: [string, string] = [fingerprint(engine, true), fingerprint(engine, false)];
    await engine.saveCheckpoint(dir, { tag: 'one' });
    const job: FrozenJob = { device: device.kind, dir, one: texts };
    const results = await runRanks('../zero/frozen-process', 2, { job });
    const [report] = reportsOf<FrozenReport>(results) as [FrozenReport];
    await engine.loadCheckpoint(dir, { tag: 'all' });
    assert.deepEqual([fingerprint(engine, true), fingerprint(engine, false)], report.all);
    engine.destroy();
    await exportedWhole(dir);
  } finally {
    rmSync(dir, { recursive: true, force: true });
  }
}

async function exportedWhole(dir: string): Promise<void> {
  const model = new Net({ block: () => new AdaptedBlock() });
  const fullLoadedWeights = await nn.loadWeights(model, join(dir, 'whole'));
  assert.deepEqual(fullLoadedWeights, { missing: [], unexpected: [] });
  const { missing } = await nn.loadWeights(model, join(dir, 'part'), { strict: false });
  const trained = [...model.namedParameters()].filter(([name]) => /narrow|widen/.test(name));
  assert.equal(missing.length, model.parameters().length - trained.length);
}

export const cases: Case[] = [
  { name: '2 ranks: sharded frozen parameters are kept', run: onOtherWorlds, gpus: 2 },
];
