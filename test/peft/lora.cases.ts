// Tests LoRA adapters: the output against sums in f64, the trained parameters, and merged weights.
import assert from 'node:assert/strict';
import { mkdtempSync, readFileSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { initialize, nn, peft, seed, Tensor, zero } from '../../lib/index.js';
import type { Device } from '../../lib/runtime/device.js';
import type { Case } from '../support/case.js';
import { largest, logits, on, stir, tinyGpt2, tinyLlama } from './models.js';

type Matrix = number[][];

const [INPUTS, OUTPUTS, RANK, ROWS] = [5, 7, 3, 4];

const times = (a: Matrix, b: Matrix): Matrix =>
  a.map((row) =>
    (b[0] as number[]).map((_, j) => row.reduce((s, x, k) => s + x * (b[k]?.[j] as number), 0)),
  );
const transposeMatrix = (a: Matrix): Matrix =>
  (a[0] as number[]).map((_, j) => a.map((row) => row[j] as number));
const scaleMatrix = (a: Matrix, by: number): Matrix => a.map((row) => row.map((x) => x * by));
const sum = (a: Matrix, b: Matrix): Matrix =>
  a.map((row, i) => row.map((x, j) => x + (b[i]?.[j] as number)));

const fillMatrix = (rows: number, columns: number, phase: number): Matrix =>
  Array.from({ length: rows }, (_, i) =>
    Array.from({ length: columns }, (_, j) => Math.fround(Math.sin(phase + 1.7 * i + 0.9 * j))),
  );

/** The values of a matrix, row by row. */
function matrixOf(tensor: Tensor): Matrix {
  const [rows, columns] = tensor.shape as [number, number];
  const values = tensor.toArray();
  return Array.from({ length: rows }, (_, i) => values.slice(i * columns, (i + 1) * columns));
}

function near(name: string, got: Tensor | null, expected: Matrix): void {
  const error = largest((got as Tensor).toArray(), expected.flat());
  assert.ok(error < 2e-6, `${name} is off by ${error}`);
}

class One extends nn.Module {
  constructor(readonly proj: nn.Linear) {
    super();
  }

  forward(x: Tensor): Tensor {
    return this.proj.call(x);
  }
}

/** y = x (W + s B A)^T + b, and the gradients of A, B and x for a given dy. */
async function asInF64(device: Device, options: peft.LoraOptions, s: number): Promise<void> {
  seed(3);
  const model = on(device, new One(new nn.Linear(INPUTS, OUTPUTS)));
  const w = matrixOf(model.proj.weight);
  const bias = (model.proj.bias as nn.Parameter).toArray();
  peft.addLora(model, { r: RANK, targetModules: ['proj'], ...options });
  stir(model);
  on(device, model);
  const layer = model.proj as unknown as peft.LoraLinear;
  const [a, b] = layer.factors.map(matrixOf) as [Matrix, Matrix];
  const [xs, dys] = [fillMatrix(ROWS, INPUTS, 0.3), fillMatrix(ROWS, OUTPUTS, 2.1)];
  const x = Tensor.from(xs, { device }).requireGrad();
  const y = model.call(x);
  const fullRows = sum(w, scaleMatrix(times(b, a), s));
  near(
    'y',
    y,
    times(xs, transposeMatrix(fullRows)).map((row) => row.map((v, j) => v + (bias[j] as number))),
  );
  y.backward(Tensor.from(dys, { device }));
  near('dx', x.grad, times(dys, fullRows));
  near('dA', layer.lora_A.weight.grad, scaleMatrix(times(transposeMatrix(times(dys, b)), xs), s));
  near(
    'dB',
    layer.lora_B.weight.grad,
    scaleMatrix(times(transposeMatrix(dys), times(xs, transposeMatrix(a))), s),
  );
  assert.equal(layer.weight.grad, null);
}

async function embeddings(device: Device): Promise<void> {
  class Words extends nn.Module {
    readonly table = new nn.Embedding(6, 4);
    forward(index: Tensor): Tensor {
      return this.table.call(index);
    }
  }
  const model = on(device, new Words());
  const table = matrixOf(model.table.weight);
  const index = Tensor.from(Int32Array.from([5, 0, 5]), { device });
  const before = model.call(index).toArray();
  peft.addLora(model, { r: 2, loraAlpha: 6, targetModules: ['table'] });
  on(device, model);
  assert.deepEqual(model.call(index).toArray(), before);
  stir(model);
  const layer = model.table as unknown as peft.LoraEmbedding;
  const [a, b] = layer.factors.map(matrixOf) as [Matrix, Matrix];
  const fullRows = sum(table, scaleMatrix(transposeMatrix(times(b, a)), 3));
  near(
    'rows',
    model.call(index),
    [5, 0, 5].map((row) => fullRows[row] as number[]),
  );
  model.call(index).sum().backward();
  assert.deepEqual(layer.lora_embedding_A.grad?.shape, [2, 6]);
  peft.merge(model);
  near(
    'merged',
    model.call(index),
    [5, 0, 5].map((row) => fullRows[row] as number[]),
  );
}

/** Padding tokens train neither the table nor its adapter. */
async function checkPadding(device: Device): Promise<void> {
  class Words extends nn.Module {
    readonly table = new nn.Embedding(6, 4, { paddingIdx: 2 });
    forward(index: Tensor): Tensor {
      return this.table.call(index);
    }
  }
  const model = peft.addLora(on(device, new Words()), { r: 3, targetModules: ['table'] });
  stir(on(device, model));
  const layer = model.table as unknown as peft.LoraEmbedding;
  const out = model.call(Tensor.from(Int32Array.from([2, 5, 2, 0]), { device }));
  const fullTensor = layer.base.weight.to('f32').add(layer.update());
  near(
    'rows',
    out,
    [2, 5, 2, 0].map((row) => matrixOf(fullTensor)[row] as number[]),
  );
  out.sum().backward();
  const grad = matrixOf(layer.lora_embedding_A.grad as Tensor);
  for (const row of grad) assert.deepEqual(row.map((x) => x !== 0).join(), GRAD_AT.join());
  assert.deepEqual(layer.lora_embedding_B.grad?.shape, [4, 3]);
}

/** Table rows that are read and not padding. */
const GRAD_AT = [true, false, false, false, false, true];

/** At first the output is unchanged; merged, unmerged and unloaded, the model computes the same. */
async function stagesOfALife(device: Device, model: nn.models.CausalLM): Promise<void> {
  on(device, model);
  const names = [...model.namedParameters()].map(([name]) => name);
  const plain = logits(model, device);
  peft.addLora(model, { r: 4, loraAlpha: 16, targetModules: 'all-linear' });
  const localTexts = [...model.namedParameters()].map(([name]) => name);
  assert.deepEqual(
    localTexts.filter((name) => !name.includes('lora_')),
    names,
  );
  // On a GPU, a separate matmul rounds differently than one with a fused sum.
  const asPlain = device.kind === 'cpu' ? 0 : 1e-6;
  assert.ok(largest(logits(model, device), plain) <= asPlain);
  stir(model);
  const adapted = logits(model, device);
  assert.ok(largest(adapted, plain) > 1e-3);
  const without = peft.withoutAdapters(model, () => logits(model, device));
  assert.ok(largest(without, plain) <= asPlain);
  const options = { maxNewTokens: 6, temperature: 0 };
  const text = model.generate([1, 2, 3], options);
  peft.merge(model);
  assert.ok(largest(logits(model, device), adapted) < 1e-5);
  assert.deepEqual(model.generate([1, 2, 3], options), text);
  peft.unmerge(model);
  assert.ok(largest(logits(model, device), adapted) < 1e-5);
  peft.merge(model);
  peft.unload(model);
  assert.deepEqual(
    [...model.namedParameters()].map(([name]) => name),
    names,
  );
  assert.ok(largest(logits(model, device), adapted) < 1e-5);
}

/** A load over merged weights throws, because the merged update would remain in the base. */
async function nothingOverMerged(device: Device): Promise<void> {
  const dir = mkdtempSync(join(tmpdir(), 'ds-merged-'));
  try {
    const model = on(device, tinyLlama());
    await nn.saveWeights(model, dir);
    peft.addLora(model, { r: 2, targetModules: ['q_proj'] });
    on(device, model);
    stir(model);
    const state = Object.fromEntries(
      Object.entries(model.stateDict()).map(([name, one]) => [name, one.clone()]),
    );
    const before = logits(model, device);
    const loads = () => model.loadStateDict(state);
    const reads = () => nn.loadWeights(model, dir, { strict: false });
    peft.merge(model);
    const merged = logits(model, device);
    const refused = { code: 'DS_ARGUMENT', got: 'merged adapters' };
    const name = 'model.layers.0.self_attn.q_proj.weight';
    assert.throws(loads, { ...refused, op: `loadStateDict ${name}` });
    await assert.rejects(reads(), { ...refused, op: `loadWeights ${name}` });
    assert.equal(largest(logits(model, device), merged), 0);
    const file = join(dir, 'merged.safetensors');
    const saved = {
      code: 'DS_ARGUMENT',
      got: 'an adapter merged into model.layers.0.self_attn.q_proj',
    };
    await assert.rejects(nn.saveWeights(model, file), { ...saved, op: 'saveWeights' });
    const other = peft.addLora(on(device, tinyLlama()), { r: 2, targetModules: ['q_proj'] });
    const whole = () => other.loadStateDict(model.stateDict());
    assert.throws(whole, { code: 'DS_ARGUMENT', op: `loadStateDict ${name}` });
    const ofBase = Object.entries(model.stateDict()).filter(([one]) => !one.includes('lora_'));
    other.loadStateDict(Object.fromEntries(ofBase), { strict: false });
    peft.unmerge(model);
    whole();
    assert.ok(largest(logits(other, device), before) < 1e-5);
    await nn.saveWeights(model, file);
    loads();
    assert.equal(largest(logits(model, device), before), 0);
    await reads();
    peft.merge(model);
    peft.unload(model);
    await nn.loadWeights(model, dir);

    const trained = peft.addLora(on(device, tinyLlama()), { r: 2, targetModules: ['q_proj'] });
    const optimizer = { type: 'SGD', params: { lr: 0.1 } } as const;
    const config = { train_batch_size: 1, optimizer };
    const { engine } = await initialize({ model: trained, config, device });
    await engine.saveCheckpoint(dir);
    const inEngine = (body: () => void) =>
      zero.GatheredParameters(engine, { modifierRank: 0 }, body);
    inEngine(() => peft.merge(trained));
    await assert.rejects(engine.loadCheckpoint(dir), {
      ...refused,
      op: `loadCheckpoint ${name}`,
    });
    await assert.rejects(engine.saveCheckpoint(dir), { ...saved, op: 'saveCheckpoint' });
    const exportHeader = async (name: string) => headerOf(await engine.save16bitModel(dir, name));
    const weights = Object.keys(tinyLlama().stateDict());
    const names = await exportHeader('merged.safetensors');
    assert.deepEqual(
      names.filter((name) => name.includes('lora_')),
      [],
    );
    assert.ok(weights.every((weight) => names.includes(weight) || weight.includes('lm_head')));
    inEngine(() => peft.unmerge(trained));
    assert.ok((await exportHeader('beside.safetensors')).some((text) => text.includes('lora_')));
    await engine.loadCheckpoint(dir);
    engine.destroy();
  } finally {
    rmSync(dir, { recursive: true });
  }
}

/** Files with the names of PEFT; they give another model of the same base the same output. */
async function files(device: Device): Promise<void> {
  const dir = mkdtempSync(join(tmpdir(), 'ds-adapter-'));
  try {
    const model = on(device, tinyGpt2(5));
    const targetModules = ['c_attn', 'c_fc'];
    const beside = { bias: 'lora_only', modulesToSave: ['ln_f'] } as const;
    peft.addLora(model, { r: 4, loraAlpha: 2, targetModules, ...beside });
    on(device, model);
    stir(model);
    await peft.saveAdapter(model, dir);
    const config = JSON.parse(readFileSync(join(dir, 'adapter_config.json'), 'utf8'));
    assert.deepEqual(
      [config.peft_type, config.r, config.lora_alpha, config.bias, config.fan_in_fan_out],
      ['LORA', 4, 2, 'lora_only', true],
    );
    const names = headerOf(join(dir, 'adapter_model.safetensors'));
    const first = 'base_model.model.transformer.h.0.attn.c_attn';
    for (const name of ['lora_A.weight', 'lora_B.weight', 'base_layer.bias']) {
      assert.ok(names.includes(`${first}.${name}`), names.join(' '));
    }
    assert.ok(names.includes('base_model.model.transformer.ln_f.weight'));
    assert.equal(names.length, 2 * 2 * 3 + 2);
    const other = on(device, tinyGpt2(5));
    await peft.loadAdapter(other, dir, { isTrainable: true });
    assert.deepEqual(logits(other, device), logits(model, device));
    const trainedNames = (model: nn.Module) =>
      [...model.namedParameters()]
        .filter(([, { requiresGrad }]) => requiresGrad)
        .map(([name]) => name);
    assert.deepEqual(trainedNames(other), trainedNames(model));
    await peft.loadAdapter(other, dir);
    assert.deepEqual(trainedNames(other), []);
    await assert.rejects(peft.loadAdapter(on(device, tinyLlama()), dir), /no such module/);
  } finally {
    rmSync(dir, { recursive: true, force: true });
  }
}

function headerOf(path: string): string[] {
  const bytes = readFileSync(path);
  const length = Number(bytes.readBigUInt64LE(0));
  return Object.keys(JSON.parse(bytes.subarray(8, 8 + length).toString())).filter(
    (name) => name !== '__metadata__',
  );
}

/** bf16 layers with adapters in f32, and with adapters in bf16. */
async function dtypes(device: Device): Promise<void> {
  for (const autocastAdapterDtype of [true, false]) {
    const model = on(device, tinyLlama().to('bf16'));
    peft.addLora(model, { autocastAdapterDtype, targetModules: 'all-linear' });
    if (!autocastAdapterDtype) model.to('bf16');
    on(device, model);
    stir(model);
    const tokens = Tensor.from(Int32Array.from([1, 2, 3, 4]), { shape: [1, 4], device });
    const out = model.train().call(tokens);
    assert.equal(out.dtype, 'bf16');
    out.to('f32').square().mean().backward();
    for (const [name, parameter] of model.namedParameters()) {
      assert.equal(parameter.grad !== null, name.includes('lora_'), name);
      const expected = name.includes('lora_') && autocastAdapterDtype ? 'f32' : 'bf16';
      assert.equal(parameter.dtype, expected, name);
    }
  }
}

/**
 * Backward keeps only the tensors that it reads: only the gradient of the weight needs the input.
 */
async function keepsNoInput(device: Device): Promise<void> {
  const width = 4096;
  for (const [layer, isFrozen] of [true, false].flatMap((frozen) =>
    [new nn.Linear(width, 8), new nn.LinearGelu(width, 8)].map((layer) => [layer, frozen] as const),
  )) {
    on(device, layer).requiresGrad_(!isFrozen);
    const start = Tensor.from(new Float32Array(64 * width), { shape: [64, width], device });
    start.requireGrad();
    const before = device.memory.inUse;
    const input = start.mul(2);
    const output = layer.call(input);
    const { bytes } = input;
    input.dispose();
    const kept = device.memory.inUse - before;
    assert.equal(kept >= bytes, !isFrozen, `${kept} of ${bytes} bytes`);
    output.sum().backward();
    assert.deepEqual(start.grad?.shape, [64, width]);
    assert.equal(layer.weight.grad === null, isFrozen);
  }
}

/** Adapters get gradients through frozen experts. */
async function underExperts(device: Device): Promise<void> {
  seed(5);
  const sizes = { vocabSize: 64, maxSeq: 16, layers: 2, heads: 4, kvHeads: 2, channels: 32 };
  const model = on(
    device,
    new nn.models.Mixtral({ ...sizes, hidden: 24, moe: { experts: 4, perToken: 2 } }),
  );
  peft.addLora(on(device, model), { r: 2 });
  stir(on(device, model));
  const tokens = Tensor.from([[3, 9, 1, 40, 7]], { device, dtype: 'i32' });
  model.train().call(tokens, tokens).backward();
  for (const [name, { grad, requiresGrad }] of model.namedParameters()) {
    assert.equal(requiresGrad, name.includes('lora_'), name);
    assert.equal(Number(grad?.square().sum().toArray()[0] ?? 0) > 0, requiresGrad, name);
  }
}

/** If a table has an adapter, PEFT also saves the table and the head. */
async function savedTables(device: Device): Promise<void> {
  const dir = mkdtempSync(join(tmpdir(), 'ds-adapter-'));
  try {
    const model = on(device, tinyLlama(2));
    peft.addLora(model, { r: 2, targetModules: ['embed_tokens'] });
    on(device, model);
    stir(model);
    await peft.saveAdapter(model, dir);
    const path = join(dir, 'adapter_model.safetensors');
    const tensors = await nn.loadWeights(new Tables(), path, { strict: false });
    assert.equal(tensors.unexpected.length, 2);
    const fullSize = new Whole(model);
    await nn.saveWeights(fullSize, path);
    const other = await peft.loadAdapter(on(device, tinyLlama(9)), dir);
    for (const [name, table] of [...other.namedParameters()].filter(([one]) =>
      /embed_tokens|head/.test(one),
    )) {
      const expected = model.stateDict()[name] as Tensor;
      assert.deepEqual(table.toArray(), expected.toArray(), name);
    }
  } finally {
    rmSync(dir, { recursive: true, force: true });
  }
}

class Tables extends nn.Module {
  forward(): void {}
}

/** The tensors of a file under PEFT's names. */
class Whole extends nn.Module {
  readonly base_model: object;

  constructor(model: nn.models.Llama) {
    super();
    const table = model.model.embed_tokens as unknown as peft.LoraEmbedding;
    const { lora_embedding_A, lora_embedding_B } = table;
    const embed_tokens = {
      lora_embedding_A,
      lora_embedding_B,
      base_layer: { weight: table.weight },
    };
    this.base_model = {
      model: { model: { embed_tokens }, lm_head: { weight: (model.lm_head as nn.Linear).weight } },
    };
  }

  forward(): void {}
}

export const cases: Case[] = [
  {
    name: 'y, dx, dA and dB are those in f64',
    run: (device) => asInF64(device, { loraAlpha: 6 }, 2),
  },
  {
    name: 'rslora and a pattern of ranks and alphas',
    run: (device) =>
      asInF64(
        device,
        { r: 9, useRslora: true, rankPattern: { proj: RANK }, alphaPattern: { 'p.*': 5 } },
        5 / Math.sqrt(RANK),
      ),
  },
  { name: 'embeddings', run: embeddings },
  { name: 'embeddings with padding', run: checkPadding },
  {
    name: 'Llama with adapters, merged, unmerged, unloaded',
    run: (device) => stagesOfALife(device, tinyLlama()),
  },
  {
    name: 'GPT-2 with adapters, merged, unmerged, unloaded',
    run: (device) => stagesOfALife(device, tinyGpt2()),
  },
  { name: 'nothing is loaded over merged adapters', run: nothingOverMerged },
  { name: "PEFT's files", run: files },
  { name: "PEFT's files with tables of the base", run: savedTables },
  { name: 'frozen layers keep nothing of their inputs', run: keepsNoInput },
  { name: 'gradients go through frozen experts', run: underExperts },
  { name: 'adapters in f32 over bf16 layers', run: dtypes },
];
