// Tests engine.optimizer.zeroGrad(), as DeepSpeed programs call it.
import assert from 'node:assert/strict';
import { type DsConfig, type Engine, initialize, nn, scope, Tensor } from '../../lib/index.js';
import type { Device } from '../../lib/runtime/device.js';
import { seed } from '../../lib/tensor/index.js';
import type { Case } from '../support/case.js';
import { tinyBatch, tinyConfig, tinyModel, weightBits } from './tiny-training.js';

const STEPS = 6;

class Tower extends nn.Module {
  readonly first = new nn.Linear(13, 19);
  readonly second = new nn.Linear(19, 5);

  forward(x: Tensor): Tensor {
    return this.second.call(this.first.call(x).gelu());
  }
}

const jointConfig: DsConfig = {
  train_micro_batch_size_per_gpu: 7,
  gradient_clipping: 0,
  optimizer: { type: 'AdamW', params: { lr: 1e-2, weight_decay: 0.1 } },
};

const batchOf = (index: number, device: Device): Tensor =>
  Tensor.from(
    Float32Array.from({ length: 7 * 13 }, (_, i) => Math.sin(i * 0.7 + index * 1.3)),
    { shape: [7, 13], device },
  ).keep();

const jointLoss = (a: Tensor, b: Tensor): Tensor => a.sub(b).square().mean().add(a.mul(b).mean());

async function tinyEngine(accumulation: number, device: Device): Promise<Engine> {
  seed(7);
  const config = tinyConfig({ precision: 'fp32', offload: false, accumulation });
  return (await initialize({ model: tinyModel(), config, device })).engine;
}

/** The joint-loss loop of DeepSpeed begins each round with zero_grad() of both optimizers. */
async function optimizersZeroGrad(device: Device): Promise<void> {
  const make = async (model: nn.Module): Promise<Engine> =>
    (await initialize({ model, config: jointConfig, device })).engine;
  const run = async (spoils: boolean): Promise<unknown[]> => {
    seed(11);
    const engines = (await Promise.all([new Tower(), new Tower()].map(make))) as [Engine, Engine];
    for (let index = 0; index < STEPS; ++index) {
      const x = batchOf(index, device);
      scope(() => {
        const outputs = () => engines.map((each) => each.forward<Tensor>(x)) as [Tensor, Tensor];
        if (spoils) jointLoss(...outputs()).backward();
        for (const { optimizer } of engines) optimizer.zeroGrad();
        jointLoss(...outputs()).backward();
        for (const engine of engines) engine.step();
      });
      x.dispose();
    }
    const found = engines.map((engine) => [...weightBits(engine)]);
    for (const engine of engines) engine.destroy();
    return found;
  };
  assert.deepEqual(await run(true), await run(false));
}

/** Micro-batches stay counted, as in DeepSpeed. The step uses the micro-batches after the call. */
async function optimizerZeroGradBetween(device: Device): Promise<void> {
  const run = async (drops: boolean): Promise<unknown[]> => {
    const engine = await tinyEngine(2, device);
    for (let index = 0; index < 4; ++index) {
      const { tokens, targets } = tinyBatch(index, device);
      const loss = engine.forward<Tensor>(tokens, targets);
      engine.backward(drops || index % 2 === 1 ? loss : scope(() => loss.mul(0).retain()));
      if (index === 1) {
        assert.throws(() => engine.optimizer.zeroGrad(), {
          code: 'DS_AUTOGRAD',
          message: /expected step\(\) first/,
        });
      }
      engine.step();
      if (drops && index % 2 === 0) engine.optimizer.zeroGrad();
    }
    const found = [...weightBits(engine)];
    assert.equal(engine.globalSteps, 2);
    engine.destroy();
    return found;
  };
  assert.deepEqual(await run(true), await run(false));
}

export const cases: Case[] = [
  { name: 'optimizer.zeroGrad() at the head of the joint-loss loop', run: optimizersZeroGrad },
  { name: 'optimizer.zeroGrad() between micro-batches', run: optimizerZeroGradBetween },
];
