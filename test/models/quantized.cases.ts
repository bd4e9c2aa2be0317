// Tests models with weights of 8 and 4 bits: quantized here, loaded from other tools, saved,
// trained with adapters.
import assert from 'node:assert/strict';
import { createHash } from 'node:crypto';
import { cpSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { WeightFiles } from '../../lib/checkpoint/index.js';
import { type TensorSource, writeSafetensors } from '../../lib/checkpoint/safetensors-writer.js';
import { initialize, nn, noGrad, peft, scope, Tensor } from '../../lib/index.js';
import type { Device } from '../../lib/runtime/device.js';
import { packageRoot } from '../../lib/runtime/package-root.js';
import { bitsOf, largest, logits, on, stir, tinyGpt2, tinyLlama } from '../peft/models.js';
import type { Case } from '../support/case.js';

const folder = join(packageRoot(), 'test', 'golden', 'quantized');

const FOLDERS = [
  'gptq',
  'gptq-act-order',
  'gptq-8bit',
  'awq',
  'pack-quantized',
  'pack-quantized-zeros',
  'pack-quantized-8bit',
];

interface Golden {
  tokens: number[][];
  logits: number[];
  /** Per layer, the SHA-256 of its weight's bits. */
  weights: Record<string, { f32: string; f16: string }>;
}

async function inFolder(body: (dir: string) => Promise<void>): Promise<void> {
  const dir = mkdtempSync(join(tmpdir(), 'ds-quantized-'));
  try {
    await body(dir);
  } finally {
    rmSync(dir, { recursive: true, force: true });
  }
}

const packedLayers = (model: nn.Module): [string, nn.QuantizedLinear][] =>
  [...model.namedModules()].flatMap(([path, module]) =>
    module instanceof nn.QuantizedLinear ? [[path, module]] : [],
  );

const digest = (tensor: Tensor): string =>
  createHash('sha256')
    .update(tensor.toRaw() as Uint16Array)
    .digest('hex');

/**
 * Weights equal the formula of the format bit for bit, and logits equal the model with these
 * weights.
 */
async function imports(device: Device): Promise<void> {
  for (const name of FOLDERS) {
    const golden: Golden = JSON.parse(readFileSync(join(folder, name, 'golden.json'), 'utf8'));
    const model = await nn.models.fromPretrained(join(folder, name), { dtype: 'f32' });
    on(device, model).eval();
    const layers = packedLayers(model);
    assert.deepEqual(layers.map(([path]) => path).sort(), Object.keys(golden.weights).sort());
    for (const [path, layer] of layers) {
      const [f32, f16] = noGrad(() =>
        scope(() => [digest(layer.values('f32')), digest(layer.values('f16'))]),
      );
      assert.deepEqual({ f32, f16 }, golden.weights[path], `${name}: ${path}`);
    }
    const ids = Int32Array.from(golden.tokens.flat());
    const got = noGrad(() =>
      scope(() =>
        model
          .call(Tensor.from(ids, { shape: [2, 12], device }))
          .contiguous()
          .toArray(),
      ),
    );
    const off = largest(got, golden.logits) / Math.max(...golden.logits.map(Math.abs));
    assert.ok(off < 1e-5, `${name}: logits are off by ${off} of the largest`);
  }
}

/** A saved and reloaded model is equal bit for bit, for every source format. */
async function returns(device: Device): Promise<void> {
  for (const name of FOLDERS) {
    await inFolder(async (dir) => {
      const first = on(device, await nn.models.fromPretrained(join(folder, name)));
      await first.save(join(dir, 'saved'));
      const config = JSON.parse(readFileSync(join(dir, 'saved', 'config.json'), 'utf8'));
      assert.equal(config.quantization_config.quant_method, 'compressed-tensors');
      assert.equal(config.quantization_config.ignore.join(), 'lm_head');
      const second = await nn.models.fromPretrained(join(dir, 'saved'));
      for (const [path, layer] of packedLayers(first)) {
        const other = new Map(packedLayers(second)).get(path) as nn.QuantizedLinear;
        const [a, b] = [layer.values('f32'), other.values('f32')];
        assert.equal(bitsOf(b), bitsOf(a), `${name}: ${path}`);
      }
      assert.ok(largest(logits(on(device, second), device), logits(first, device)) < 1e-6);
    });
  }
}

/**
 * Heads, tied or not, with and without quantization; skipped layers; files with this library's
 * names.
 */
async function makes(device: Device): Promise<void> {
  for (const make of [tinyLlama, tinyGpt2] as const) {
    for (const options of [
      { bits: 8 },
      { bits: 4, groupSize: 8, head: 8 },
      { bits: 4, groupSize: 8, head: 4, skipModules: ['o_proj', 'attn.c_proj'] },
    ] as const) {
      const plain = logits(on(device, make()), device);
      const model: nn.models.CausalLM = nn.quantizeModel(on(device, make()), options);
      const names = packedLayers(model).map(([path]) => path);
      assert.equal(names.includes('lm_head'), 'head' in options);
      assert.equal(
        names.some((path) => /o_proj|attn.c_proj/.test(path)),
        !('skipModules' in options),
      );
      const got = logits(model, device);
      assert.ok(largest(got, plain) > 0);
      assert.ok(
        largest(got, plain) < (options.bits === 8 ? 0.05 : 0.6),
        String(largest(got, plain)),
      );
      requireLoss(model, device);
      await inFolder(async (dir) => {
        await model.save(join(dir, 'hf'));
        const again = on(device, await nn.models.fromPretrained(join(dir, 'hf')));
        assert.deepEqual(logits(again, device), got);
        await nn.saveWeights(model, join(dir, 'own.safetensors'));
        const empty = nn.quantizeModel(on(device, make(2)) as nn.models.CausalLM, options);
        await nn.loadWeights(empty, join(dir, 'own.safetensors'));
        assert.deepEqual(logits(empty, device), got);
      });
    }
  }
}

/** The loss matches the logits, for any head. */
function requireLoss(model: nn.models.CausalLM, device: Device): void {
  const ids = Int32Array.from({ length: 12 }, (_, i) => (i * 7 + 3) % 64);
  const [loss, expected] = noGrad(() =>
    scope(() => {
      const tokens = Tensor.from(ids, { shape: [2, 6], device });
      const rows = model.call(tokens).to('f32').reshape([12, 64]);
      const expected = rows
        .logSoftmax(-1)
        .gather(1, tokens.reshape([12, 1]).to('i64'))
        .mean()
        .mul(-1);
      return [model.call(tokens, tokens).item(), expected.item()];
    }),
  ) as [number, number];
  assert.ok(Math.abs(loss - expected) < 1e-5, `${loss}, not ${expected}`);
}

/** 16-bit weights: scales have their dtype, and keep it when the rest is converted. */
async function keepsSteps(device: Device): Promise<void> {
  const model = nn.quantizeModel(tinyLlama().to(device, 'bf16'), { bits: 4, groupSize: 8 });
  const bits = packedLayers(model).map(([, layer]) => bitsOf(layer.values('f32')));
  await inFolder(async (dir) => {
    await model.save(join(dir, 'saved'), { dtype: 'fp16' });
    const config = JSON.parse(readFileSync(join(dir, 'saved', 'config.json'), 'utf8'));
    assert.equal(config.torch_dtype, 'float16');
    const again = await nn.models.fromPretrained(join(dir, 'saved'));
    assert.deepEqual(
      packedLayers(again).map(([, layer]) => bitsOf(layer.values('f32'))),
      bits,
    );
    assert.equal(again.computesIn.dtype, 'f16');
    again.to('f32');
    assert.deepEqual(
      packedLayers(again).map(([, layer]) => bitsOf(layer.values('f32'))),
      bits,
    );
  });
}

/** Adapters on quantized weights train at every stage, and the weights stay; then they merge. */
async function adapts(device: Device): Promise<void> {
  const ids = Int32Array.from({ length: 12 }, (_, i) => (i * 5 + 1) % 64);
  for (const stage of [0, 3] as const) {
    const model = nn.quantizeModel(tinyLlama(), { bits: 4, groupSize: 8, head: 8 });
    peft.addLora(model, { targetModules: 'all-linear', excludeModules: ['lm_head'], r: 4 });
    const { engine } = await initialize({
      model,
      device,
      config: {
        train_micro_batch_size_per_gpu: 2,
        zero_optimization: { stage },
        optimizer: { type: 'AdamW', params: { lr: 0.02 } },
      },
    });
    const losses: number[] = [];
    for (let step = 0; step < 4; ++step) {
      const tokens = Tensor.from(ids, { shape: [2, 6], device });
      const loss = engine.forward(tokens, tokens);
      losses.push(loss.item());
      engine.backward(loss);
      engine.step();
      tokens.dispose();
    }
    engine.destroy();
    assert.ok((losses[3] as number) < (losses[0] as number) - 0.1, losses.join());
  }
  const model = nn.quantizeModel(tinyLlama().to(device), { bits: 8, groupSize: 8 });
  peft.addLora(model, { targetModules: 'all-linear' });
  on(device, model);
  stir(model);
  const beside = logits(model, device);
  peft.merge(model);
  assert.ok(largest(logits(model, device), beside) < 0.05);
  await inFolder(async (dir) => {
    await model.save(join(dir, 'merged'));
    const again = await nn.models.fromPretrained(join(dir, 'merged'));
    assert.deepEqual(logits(on(device, again), device), logits(model, device));
  });
}

const MISTAKES: readonly [string, (quantization: Record<string, unknown>) => object, RegExp][] = [
  [
    'gptq',
    (options) => ({ ...options, bits: 3 }),
    /bits: expected 4 or 8, got 3.*4 and 8 bits only/s,
  ],
  ['gptq', (options) => ({ ...options, bits: 2 }), /bits: expected 4 or 8, got 2/],
  [
    'gptq',
    (options) => ({ ...options, checkpoint_format: 'marlin' }),
    /checkpoint_format.*got "marlin".*kernel-specific/s,
  ],
  [
    'gptq',
    (options) => ({ ...options, is_marlin_format: true }),
    /is_marlin_format: expected false/,
  ],
  ['gptq', (options) => ({ ...options, dynamic: { '+:q_proj': { bits: 8 } } }), /dynamic/],
  [
    'gptq',
    (options) => ({ ...options, group_size: 64 }),
    /scales: expected \[2, 64\] floating, got \[3, 64\] f16/,
  ],
  [
    'gptq-act-order',
    (options) => ({ ...options, group_size: 16.5 }),
    /group_size: expected -1, or a multiple of 8/,
  ],
  ['gptq-act-order', (options) => ({ ...options, group_size: -1 }), /scales: expected \[1, /],
  ['gptq', () => ({ quant_method: 'fp8' }), /quant_method: .*got "fp8"/],
  ['awq', (options) => ({ ...options, version: 'gemv' }), /version: expected "gemm".*got "gemv"/],
  [
    'awq',
    (options) => ({ ...options, version: 'exllama' }),
    /version: expected "gemm".*got "exllama"/,
  ],
  [
    'pack-quantized',
    (options) => ({ ...options, format: 'float-quantized' }),
    /format: .*got "float-quantized"/,
  ],
  [
    'pack-quantized',
    (options) => ({ ...options, kv_cache_scheme: { num_bits: 8 } }),
    /kv_cache_scheme: expected nothing/,
  ],
  [
    'pack-quantized',
    (options) => withWeights(options, { type: 'float' }),
    /type: expected "int", got "float".*FP8/s,
  ],
  [
    'pack-quantized',
    (options) => withWeights(options, { strategy: 'block' }),
    /strategy: expected "group" or "channel"/,
  ],
  [
    'pack-quantized',
    (options) => withGroup(options, { input_activations: { num_bits: 8 } }),
    /input_activations: expected nothing.*Quantized activations/s,
  ],
  [
    'pack-quantized',
    (options) => withGroup(options, { targets: ['re:.*mlp'] }),
    /a group for model\.layers\.0\.self_attn/,
  ],
];

type Groups = { config_groups: { group_0: { weights: object } } };

function withGroup(options: object, more: object): object {
  const { group_0 } = (options as Groups).config_groups;
  return { ...options, config_groups: { group_0: { ...group_0, ...more } } };
}

const withWeights = (options: object, more: object): object =>
  withGroup(options, {
    weights: { ...(options as Groups).config_groups.group_0.weights, ...more },
  });

/** Settings that need another computation throw with the reason. */
async function refuses(): Promise<void> {
  await inFolder(async (dir) => {
    for (const [i, [name, change, message]] of MISTAKES.entries()) {
      const place = join(dir, String(i));
      cpSync(join(folder, name), place, { recursive: true });
      const path = join(place, 'config.json');
      const config = JSON.parse(readFileSync(path, 'utf8'));
      config.quantization_config = change(config.quantization_config);
      writeFileSync(path, JSON.stringify(config));
      await assert.rejects(nn.models.fromPretrained(place), message, `${name} ${i}`);
    }
  });
}

/** A copy of the folder `name` in `dir`; in the files, the first layer has a bias of `value`. */
async function withBias(dir: string, name: string, value: number): Promise<string> {
  const place = join(dir, `${name}${value}`);
  cpSync(join(folder, name), place, { recursive: true });
  const files = await WeightFiles.open(join(folder, name));
  const sources: TensorSource[] = [];
  for (const [tensor, { dtype, shape }] of files.tensors) {
    sources.push({ name: tensor, dtype, shape, values: await files.read(tensor) });
  }
  await files.close();
  const [path] = packedLayers(await nn.models.fromPretrained(place))[0] as [string, nn.Module];
  const of = (end: string) =>
    sources.find((source) => source.name === `${path}.${end}`)?.shape ?? [];
  const width = of('scales')[1] as number;
  const values = Tensor.from(new Float32Array(width).fill(value)).to('f16');
  sources.push({ name: `${path}.bias`, dtype: 'f16', shape: [width], values });
  await writeSafetensors(join(place, 'model.safetensors'), sources);
  return place;
}

/** AutoGPTQ gave every layer a bias, with zeros if the model has no bias. */
async function takesZeros(device: Device): Promise<void> {
  await inFolder(async (dir) => {
    const plain = on(device, await nn.models.fromPretrained(join(folder, 'gptq')));
    const model = on(device, await nn.models.fromPretrained(await withBias(dir, 'gptq', 0)));
    assert.deepEqual(logits(model, device), logits(plain, device));
    await assert.rejects(
      nn.models.fromPretrained(await withBias(dir, 'gptq', 0.5)),
      /_proj\.bias: expected zeros, because .* has no bias, got other values/,
    );
  });
}

/** Misused functions throw. */
async function misuses(device: Device): Promise<void> {
  const quantizeTiny = (options: object) => () => nn.quantizeModel(tinyLlama(), options as never);
  assert.throws(quantizeTiny({}), /bits: expected 8 or 4/);
  assert.throws(() => nn.quantizeModel(tinyLlama(), undefined as never), /bits: expected 8 or 4/);
  assert.throws(quantizeTiny({ bits: 4, head: 16 }), /head: expected 8, 4 or null, got 16/);
  assert.throws(quantizeTiny({ bits: 8, groups: 4 }), /groups/);
  const adapted = peft.addLora(tinyLlama());
  assert.throws(() => nn.quantizeModel(adapted, { bits: 8 }), /Quantize first/);
  const twice = nn.quantizeModel(tinyLlama(), { bits: 8 });
  assert.throws(() => nn.quantizeModel(twice, { bits: 8 }), /linear layers/);
  assert.throws(() => twice.requiresGrad_(true), /part of a quantized weight/);
  const both = nn.quantizeModel(tinyLlama(), { bits: 8, skipModules: ['q_proj'] });
  peft.quantize(both);
  await inFolder(async (dir) => {
    await assert.rejects(both.save(join(dir, 'both')), /No file format supports both/);
  });
  const { engine } = await initialize({
    model: nn.quantizeModel(peftless(), { bits: 8, skipModules: ['down_proj'] }),
    device,
    config: {
      train_micro_batch_size_per_gpu: 2,
      optimizer: { type: 'AdamW', params: { lr: 1e-3 } },
    },
  });
  const model = engine.module as nn.models.CausalLM;
  assert.throws(() => nn.quantizeModel(model, { bits: 8 }), /a model that an engine owns/);
  const [[, layer]] = packedLayers(model) as [[string, nn.QuantizedLinear]];
  engine.destroy();
  assert.equal(layer.weight_packed.requiresGrad, false);
}

const peftless = (): nn.models.CausalLM => tinyLlama();

export const cases: Case[] = [
  { name: 'folders of GPTQ, AWQ and compressed-tensors', run: imports },
  { name: 'what is saved comes back, in the layout of compressed-tensors', run: returns },
  { name: 'models made of 8 and 4 bits', run: makes },
  { name: 'steps keep their dtype', run: keepsSteps },
  { name: 'adapters beside packed weights', run: adapts },
  { name: 'folders that are not read are refused', run: refuses },
  { name: 'biases of zeros, where a model has none', run: takesZeros },
  { name: 'misuse', run: misuses },
];
