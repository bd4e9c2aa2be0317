// initInference() of a model that initialize() has: texts between the steps of its training.
import assert from 'node:assert/strict';
import { type DsConfig, initInference, initialize, nn } from '../../lib/index.js';
import type { Device } from '../../lib/runtime/device.js';
import { seed } from '../../lib/tensor/index.js';
import { reportsOf, runRanks } from '../comm/ranks.js';
import type { Case } from '../support/case.js';
import { tinyConfig, tinyModel } from './tiny-training.js';
import { type Trained, trainAndContinue } from './training-inference.js';

const offload_param = { device: 'cpu' } as const;
const places: Record<string, Trained> = {
  'stage 0': { precision: 'fp32', offload: false, zero: { stage: 0 } },
  'stage 2, offload in bf16': {
    precision: 'bf16',
    offload: true,
    speculative: true,
    zero: { stage: 2 },
  },
  'stage 3': { precision: 'fp32', offload: false, zero: { stage: 3 } },
  'stage 3, weights offloaded': {
    precision: 'fp32',
    offload: true,
    zero: { stage: 3, offload_param, stage3_param_persistence_threshold: 0 },
  },
};

const alone: Case[] = Object.entries(places).map(([name, options]) => ({
  name: `initInference while ${name} trains: its texts follow the weights, and change none`,
  async run(device) {
    const plain = await trainAndContinue(options, device, false);
    assert.deepEqual(await trainAndContinue(options, device, true), plain);
  },
}));

const between: Case = {
  name: 'initInference while two ranks train at stage 2: each continues texts by itself',
  gpus: 2,
  async run({ kind }) {
    const job = { device: kind, options: { ...places['stage 2, offload in bf16'] } };
    const found = await runRanks('../e2e/training-inference-process', 2, { job });
    assert.equal(reportsOf<boolean>(found).filter(Boolean).length, 2);
  },
};

async function isRefused(config: object, message: RegExp, device: Device): Promise<void> {
  const options: Trained = { precision: 'fp32', offload: false, zero: { stage: 1 } };
  const { engine } = await initialize({ model: tinyModel(), config: tinyConfig(options), device });
  const asked = initInference(engine.module as nn.models.GPT2, config);
  await assert.rejects(asked, { code: 'DS_CONFIG', message });
  const same = { dtype: 'fp32', device: device.name } as const;
  const writer = await initInference(engine.module as nn.models.GPT2, same);
  await writer.destroy();
  engine.destroy();
}

const wrong: readonly (readonly [name: string, config: object, message: RegExp])[] = [
  ['dtype', { dtype: 'bf16' }, /initInference dtype: expected no value .*initialize.*got "bf16"/],
  ['quant', { dtype: 'int8' }, /initInference dtype: expected no value .*got "int8"/],
];
const refusals: Case[] = wrong.map(([name, config, message]) => ({
  name: `initInference of a model in training refuses another ${name}, and takes its own`,
  run: (device) => isRefused(config, message, device),
}));

const afterwards: Case = {
  name: 'initInference continues with the weights of a destroyed training engine',
  async run(device) {
    seed(7);
    const options: Trained = { precision: 'fp32', offload: false, zero: { stage: 2 } };
    const config: DsConfig = tinyConfig(options);
    const { engine } = await initialize({ model: tinyModel(), config, device });
    const model = engine.module as nn.models.GPT2;
    const writer = await initInference(model);
    const request = { prompt: [3, 1, 4], maxNewTokens: 6, ignoreEos: true, temperature: 0 };
    const [before] = await writer.generate(request);
    engine.destroy();
    const [after] = await writer.generate(request);
    assert.deepEqual(after?.tokens, before?.tokens);
    await writer.destroy();
    const second = await initInference(model);
    const [again] = await second.generate(request);
    assert.deepEqual(again?.tokens, before?.tokens);
    await second.destroy();
    for (const parameter of model.parameters()) parameter.dispose();
  },
};

const modes: Case = {
  name: 'an inference engine evaluates a model that is in training mode',
  async run(device) {
    seed(7);
    const model = new nn.models.GPT2({
      vocabSize: 61,
      maxSeq: 32,
      layers: 2,
      heads: 2,
      channels: 16,
      dropout: 0.5,
    }).to(device);
    const writer = await initInference(model);
    const request = { prompt: [3, 1, 4], maxNewTokens: 6, ignoreEos: true, temperature: 0 };
    const [before] = await writer.generate(request);
    model.train();
    const [after] = await writer.generate(request);
    assert.deepEqual(after?.tokens, before?.tokens);
    assert.equal(model.training, true);
    await writer.destroy();
    for (const parameter of model.parameters()) parameter.dispose();
  },
};

export const cases: readonly Case[] = [...alone, between, ...refusals, afterwards, modes];
