// Tests engines without an optimizer: weights are in host memory and go to the device for each
// forward, also quantized.
import assert from 'node:assert/strict';
import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import {
  type DsConfig,
  type Engine,
  initInference,
  initialize,
  nn,
  seed,
  Tensor,
} from '../../lib/index.js';
import type { Device } from '../../lib/runtime/device.js';
import type { WeightUnit } from '../../lib/zero/unit.js';
import type { Case } from '../support/case.js';

const sizes = {
  vocabSize: 53,
  maxSeq: 48,
  layers: 4,
  heads: 4,
  kvHeads: 2,
  channels: 32,
  hidden: 64,
};
const prompt = [3, 1, 4, 1, 5];
const greedy = { maxNewTokens: 7, temperature: 0, seed: 1 };

function makeModel(): nn.models.Llama {
  seed(21);
  return new nn.models.Llama(sizes).eval() as nn.models.Llama;
}

async function streamingEngine(device: Device, more: Partial<DsConfig> = {}): Promise<Engine> {
  const model = makeModel();
  const config: DsConfig = {
    train_micro_batch_size_per_gpu: 1,
    zero_optimization: {
      stage: 3,
      offload_param: { device: 'cpu' },
      // Prefetch the next block, whatever its size.
      stage3_prefetch_bucket_size: 1,
      stage3_max_live_parameters: 3 * largest(model),
      stage3_max_reuse_distance: 0,
      stage3_param_persistence_threshold: 0,
    },
    ...more,
  };
  const { engine } = await initialize({ model, config, device });
  return engine.eval();
}

/** Elements of the largest unit, and of the gaps between its parameters. */
function largest(model: nn.models.Llama): number {
  const of = (module: nn.Module): number =>
    module.parameters().reduce((sum, { numel }) => sum + numel, 0);
  const blocks = model.model.layers.map(of);
  const root = of(model) - blocks.reduce((sum, value) => sum + value, 0);
  return Math.ceil(1.2 * Math.max(...blocks, root));
}

const tokensOn = (device: Device): Tensor =>
  Tensor.from(Int32Array.from([...prompt, 9, 2, 6]), { shape: [2, 4], device });

/** Equal bits. On a GPU the matmul depends on the address of a weight, so values match to 1e-4. */
function same({ kind }: Device, got: Tensor, expected: Tensor): void {
  const [values, expectedValues] = [got.toArray(), expected.toArray()];
  if (kind === 'cpu') assert.deepEqual(values, expectedValues);
  const far = values.findIndex(
    (value, i) => !(Math.abs(value - (expectedValues[i] as number)) < 1e-4),
  );
  assert.equal(far, -1, `element ${far}: ${values[far]}, not ${expectedValues[far]}`);
  assert.equal(values.length, expectedValues.length);
}

/** Whether a unit's weights are on the device, or in transfer. */
function isHere(engine: Engine): (unit: WeightUnit) => boolean {
  const { stages } = engine.parts.stage as unknown as {
    stages: { weights: { gathered: Map<WeightUnit, unknown> } }[];
  };
  return (unit) => stages.some(({ weights }) => weights.gathered.has(unit));
}

const streams: Case = {
  name: 'ZeRO-Inference: forward and generate are those of the whole model, with one block beside that in use on the device',
  async run(device) {
    const fullModel = makeModel().to(device);
    const engine = await streamingEngine(device);
    const model = engine.module as nn.models.Llama;
    const here = isHere(engine);
    const peaks: number[] = [];
    const ahead: boolean[] = [];
    const units = engine.parts.stage.frozen.map(({ unit }) => unit);
    const removers = model.model.layers.map((block, i) =>
      block.registerForwardPreHook(() => {
        peaks.push(units.filter(here).length);
        const next = units.find(({ module }) => module === model.model.layers[i + 1]);
        if (next) ahead.push(here(next));
      }),
    );
    const expected = fullModel.call(tokensOn(device)) as Tensor;
    for (let pass = 0; pass < 2; ++pass) {
      const logits = engine.forward<Tensor>(tokensOn(device));
      same(device, logits, expected);
    }
    assert.deepEqual(model.generate(prompt, greedy), fullModel.generate(prompt, greedy));
    // The embedding's unit is in use while the blocks run.
    assert.ok(Math.max(...peaks) <= 3, `${Math.max(...peaks)} units at a time`);
    assert.deepEqual(ahead.slice(0, 3), [false, false, false]);
    assert.ok(
      ahead.slice(3).every(Boolean),
      'each block but those of the first forward was fetched ahead',
    );
    for (const remove of removers) remove();
    expected.dispose();
    engine.destroy();
    for (const parameter of fullModel.parameters()) parameter.dispose();
  },
};

const bits = [8, 4] as const;
const quantized: Case[] = bits.map((num_bits) => ({
  name: `ZeRO-Inference: weights of ${num_bits} bits lie and move in that form`,
  async run(device) {
    const group_size = 16;
    const fullModel = nn
      .quantizeModel(makeModel(), { bits: num_bits, groupSize: group_size })
      .to(device);
    const plain = await streamingEngine(device);
    const bytesOf = ({ parts }: Engine): number =>
      parts.stage.frozen
        .filter(({ unit }) => unit.name.includes('layers'))
        .reduce((sum, { weights }) => sum + weights.bytes, 0);
    const before = bytesOf(plain);
    plain.destroy();
    const engine = await streamingEngine(device, {
      weight_quantization: { quantized_initialization: { num_bits, group_size } },
    });
    const share = bytesOf(engine) / before;
    assert.ok(share < num_bits / 32 + 0.11, `${share} of the bytes`);
    const got = engine.forward<Tensor>(tokensOn(device));
    const expected = fullModel.call(tokensOn(device)) as Tensor;
    same(device, got, expected);
    const text = (engine.module as nn.models.Llama).generate(prompt, greedy);
    assert.deepEqual(text, fullModel.generate(prompt, greedy));
    expected.dispose();
    engine.destroy();
    for (const parameter of fullModel.parameters()) parameter.dispose();
  },
}));

const many: Case = {
  name: 'ZeRO-Inference: initInference continues many texts over weights that come and go',
  async run(device) {
    const fullModel = makeModel().to(device);
    const engine = await streamingEngine(device);
    const model = engine.module as nn.models.Llama;
    const writer = await initInference(model, { max_out_tokens: 32 });
    const ask = { maxNewTokens: 7, temperature: 0, ignoreEos: true };
    const texts = await writer.generateBatch(
      [prompt, [7], [2, 6]].map((row) => ({ ...ask, prompt: row })),
    );
    for (const [i, one] of [prompt, [7], [2, 6]].entries()) {
      assert.deepEqual([...one, ...(texts[i]?.[0]?.tokens ?? [])], fullModel.generate(one, greedy));
    }
    await assert.rejects(
      initInference(model, { dtype: 'bf16' }),
      /initInference dtype: expected no value/,
    );
    await writer.destroy();
    assert.equal(engine.forward<Tensor>(tokensOn(device)).shape[2], 53);
    engine.destroy();
    for (const parameter of fullModel.parameters()) parameter.dispose();
  },
};

const fromDisk: Case = {
  name: 'ZeRO-Inference: weights come from a disk',
  async run(device) {
    const nvme_path = mkdtempSync(join(tmpdir(), 'ds-streamed-'));
    const fullModel = makeModel().to(device);
    const engine = await streamingEngine(device, {
      zero_optimization: { stage: 3, offload_param: { device: 'nvme', nvme_path } },
    });
    const expected = fullModel.call(tokensOn(device)) as Tensor;
    for (let pass = 0; pass < 3; ++pass) {
      same(device, engine.forward<Tensor>(tokensOn(device)), expected);
    }
    const model = engine.module as nn.models.Llama;
    assert.deepEqual(model.generate(prompt, greedy), fullModel.generate(prompt, greedy));
    expected.dispose();
    engine.destroy();
    for (const parameter of fullModel.parameters()) parameter.dispose();
    rmSync(nvme_path, { recursive: true });
  },
};

const refusals: Case = {
  name: 'ZeRO-Inference refuses training',
  async run(device) {
    const engine = await streamingEngine(device);
    const isRefused = {
      code: 'DS_CONFIG',
      message: /expected an engine with an optimizer, got an engine for forwards only/,
    };
    assert.throws(() => engine.step(), isRefused);
    const x = engine.forward<Tensor>(tokensOn(device));
    assert.throws(() => engine.backward(x.mean()), isRefused);
    engine.destroy();
    const micro = { train_micro_batch_size_per_gpu: 1 };
    const lower = { ...micro, zero_optimization: { stage: 2 } } as const;
    await assert.rejects(
      initialize({ model: makeModel(), config: lower, device }),
      /optimizer: expected an optimizer/,
    );
    const both: DsConfig = {
      ...micro,
      zero_optimization: { stage: 3 },
      optimizer: { type: 'AdamW', params: { lr: 0.1 } },
      weight_quantization: { quantized_initialization: {} },
    };
    await assert.rejects(
      initialize({ model: makeModel(), config: both, device }),
      /quantized_initialization: expected no optimizer/,
    );
  },
};

export const cases: readonly Case[] = [streams, ...quantized, many, fromDisk, refusals];
