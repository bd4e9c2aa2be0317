// Tests that frozen parameters keep their values, and that buffers move to the engine's device.
import assert from 'node:assert/strict';
import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { type Engine, initialize, nn, seed, Tensor } from '../../lib/index.js';
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

class Shifted extends nn.Module {
  readonly linear = new nn.Linear(3, 1);
  readonly shift = Tensor.from([1, 2, 3]).keep();

  forward(x: Tensor): Tensor {
    return this.linear.call(x.add(this.shift)).sum();
  }
}

/** A buffer made on the CPU moves to the engine's device. */
async function buffersFollow(device: Device): Promise<void> {
  const model = new Shifted();
  const config = tinyConfig({ precision: 'fp32', offload: false });
  const { engine } = await initialize({ model, config, device });
  const x = Tensor.from([[1, 1, 1]], { device });
  engine.backward(engine.forward<Tensor>(x));
  engine.step();
  assert.equal(model.shift.device, device);
  assert.deepEqual(model.shift.toArray(), [1, 2, 3]);
  assert.deepEqual(
    [...model.namedBuffers()].map(([name]) => name),
    ['shift'],
  );
  engine.destroy();
  x.dispose();
}

export const cases: Case[] = [
  { name: 'buffers follow the engine to its device', run: buffersFollow },
  { name: 'frozen parameters keep their values', run: (device) => stayAsTheyAre(device, false) },
  {
    name: 'frozen parameters keep their values under offload',
    run: (device) => stayAsTheyAre(device, true),
  },
];
