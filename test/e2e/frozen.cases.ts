// Frozen parameters: no gradient, no decay, no state, and the same values after a resume.
import assert from 'node:assert/strict';
import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { type Engine, initialize, seed } from '../../lib/index.js';
import type { Device } from '../../lib/runtime/device.js';
import type { Case } from '../support/case.js';
import { tinyConfig, tinyModel, trainTiny, weightBits } from './tiny-training.js';

const frozen = /wpe|h\.0\.mlp/;

async function partlyFrozen(device: Device, offload: boolean): Promise<Engine> {
  seed(1234);
  const model = tinyModel();
  for (const [name, parameter] of model.namedParameters()) {
    if (frozen.test(name)) parameter.requireGrad(false);
  }
  const config = tinyConfig({ precision: 'bf16', offload });
  return (await initialize({ model, config, device })).engine;
}

async function stayAsTheyAre(device: Device, offload: boolean): Promise<void> {
  const engine = await partlyFrozen(device, offload);
  const before = weightBits(engine);
  trainTiny(engine, 0, 5);
  const after = weightBits(engine);
  for (const [name, bits] of after) {
    if (frozen.test(name)) assert.equal(bits, before.get(name), `${name} moved`);
    else assert.notEqual(bits, before.get(name), `${name} did not move`);
  }
  const dir = mkdtempSync(join(tmpdir(), 'ds-frozen-'));
  try {
    await engine.saveCheckpoint(dir);
    const resumed = await partlyFrozen(device, offload);
    trainTiny(resumed, 0, 1);
    await resumed.loadCheckpoint(dir);
    assert.deepEqual(weightBits(resumed), after);
    resumed.destroy();
  } finally {
    rmSync(dir, { recursive: true, force: true });
  }
  engine.destroy();
}

export const cases: Case[] = [
  { name: 'frozen parameters stay as they are', run: (device) => stayAsTheyAre(device, false) },
  { name: 'frozen parameters stay under offload', run: (device) => stayAsTheyAre(device, true) },
];
