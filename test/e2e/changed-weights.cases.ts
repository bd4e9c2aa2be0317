// Tests that backward throws if the weights have changed since its forward.
import assert from 'node:assert/strict';
import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import {
  type DsConfig,
  type Engine,
  initialize,
  nn,
  noGrad,
  peft,
  Tensor,
  zero,
} from '../../lib/index.js';
import type { Device } from '../../lib/runtime/device.js';
import { full } from '../../lib/tensor/index.js';
import type { Case } from '../support/case.js';

type ZeroConfig = NonNullable<DsConfig['zero_optimization']>;

const places: Record<string, ZeroConfig> = {
  'stage 0': { stage: 0 },
  'stage 2, offload': { stage: 2, offload_optimizer: { device: 'cpu' } },
  'stage 3, weights offloaded': {
    stage: 3,
    offload_param: { device: 'cpu' },
    offload_optimizer: { device: 'cpu' },
  },
};

class Two extends nn.Module {
  readonly one = new nn.Linear(2, 2, { bias: false });
  readonly two = new nn.Linear(2, 1, { bias: false });

  override forward(x: Tensor): Tensor {
    return this.two.call(this.one.call(x));
  }
}

class Wide extends nn.Module {
  readonly one = new nn.Linear(64, 64);

  override forward(x: Tensor): Tensor {
    return this.one.call(x);
  }
}

async function engineOf(zeroConfig: ZeroConfig, device: Device): Promise<Engine> {
  const { engine } = await initialize({
    model: new Two(),
    device,
    config: {
      train_batch_size: 1,
      optimizer: { type: 'SGD', params: { lr: 1 } },
      zero_optimization: zeroConfig,
    },
  });
  return engine;
}

const input = (device: Device): Tensor => Tensor.from([[1, 2]], { device }).requireGrad();

function refuses(backward: () => void): void {
  assert.throws(backward, { code: 'DS_AUTOGRAD', message: /changed in place after/ });
}

function step(engine: Engine): void {
  engine.backward(engine.forward<Tensor>(Tensor.from([[1, 1]], { device: engine.device })).sum());
  engine.step();
}

type Change = (engine: Engine, dir: string) => void | Promise<void>;

const changes: Record<string, Change> = {
  'engine.step': step,
  'loadCheckpoint of': async (engine, dir) => void (await engine.loadCheckpoint(dir)),
  'safeSetFullFp32Param of': ({ module, device }) => {
    const { weight } = (module as Two).two;
    zero.safeSetFullFp32Param(weight, full([1, 2], 3, { device }));
  },
  'GatheredParameters of': ({ module }) => {
    const { weight } = (module as Two).two;
    zero.GatheredParameters(weight, { modifierRank: 0 }, () => noGrad(() => weight.fill_(3)));
  },
};

async function changedInEngine(change: Change, place: ZeroConfig, device: Device): Promise<void> {
  const dir = mkdtempSync(join(tmpdir(), 'ds-changed-'));
  const engine = await engineOf(place, device);
  try {
    await engine.saveCheckpoint(dir);
    const x = input(device);
    const old = engine.forward<Tensor>(x).sum().keep();
    await change(engine, dir);
    refuses(() => engine.backward(old));
    engine.zeroGrad();
    step(engine);
  } finally {
    engine.destroy();
    rmSync(dir, { recursive: true, force: true });
  }
}

/** Forwards before, between and after other forwards that change no weights. */
async function checkUnchanged(place: ZeroConfig, device: Device): Promise<void> {
  const engine = await engineOf(place, device);
  for (let index = 0; index < 3; ++index) {
    const x = input(device);
    const loss = engine.forward<Tensor>(x).sum();
    const other = engine.forward<Tensor>(x).sum();
    engine.withFullWeights(() => engine.module.stateDict());
    noGrad(() => engine.module.call(x));
    engine.noSync(() => engine.backward(other));
    engine.backward(loss);
    engine.step();
  }
  assert.equal(engine.globalSteps, 3);
  engine.destroy();
}

const writers: Record<string, (model: Two, device: Device) => void | Promise<void>> = {
  loadStateDict: (model, device) => {
    model.two.loadStateDict({ weight: full([1, 2], 3, { device }) });
  },
  initialize: ({ two }) => void two.weight.initialize(nn.init.ones),
  loadWeights: async (model) => {
    const dir = mkdtempSync(join(tmpdir(), 'ds-changed-'));
    await nn.saveWeights(model, dir);
    await nn.loadWeights(model, dir);
    rmSync(dir, { recursive: true, force: true });
  },
  'peft.merge': (model) => peft.merge(model),
};

async function changedAlone(
  write: (model: Two, device: Device) => void | Promise<void>,
  device: Device,
): Promise<void> {
  const model = new Two();
  model.to(device);
  peft.addLora(model, { r: 1, targetModules: ['one'] });
  const old = model.call(input(device)).sum().keep();
  await write(model, device);
  refuses(() => old.backward());
  model.call(input(device)).sum().backward();
}

function mergedOverCodes(device: Device): void {
  const model = peft.addLora(peft.quantize(new Wide()), { r: 1, targetModules: ['one'] });
  model.to(device);
  const x = full([1, 64], 1, { device }).requireGrad();
  const old = model.call(x).sum().keep();
  peft.merge(model);
  refuses(() => old.backward());
}

export const cases: Case[] = [
  ...Object.entries(places).flatMap(([place, config]) => [
    ...Object.entries(changes).map(([change, body]) => ({
      name: `${change} an engine, ${place}`,
      run: (device: Device) => changedInEngine(body, config, device),
    })),
    { name: `nothing changes, ${place}`, run: (device: Device) => checkUnchanged(config, device) },
  ]),
  ...Object.entries(writers).map(([name, write]) => ({
    name: `${name} of a model alone`,
    run: (device: Device) => changedAlone(write, device),
  })),
  { name: 'peft.merge into 4 bits', run: mergedOverCodes },
];
