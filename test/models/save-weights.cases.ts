// nn.saveWeights: files and folders that loadWeights reads back bit for bit, whole or not at all.
import assert from 'node:assert/strict';
import { mkdtempSync, readdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { DsError, initialize, nn, seed, Tensor } from '../../lib/index.js';
import type { Device } from '../../lib/runtime/device.js';
import { observeCreation } from '../../lib/tensor/tensor.js';
import type { Case } from '../support/case.js';

class Tied extends nn.Module {
  readonly table = new nn.Embedding(11, 6);
  readonly head = new nn.Linear(6, 11, { bias: false });
  readonly seen = Tensor.from(Int32Array.of(3, 1, 4)).keep();

  constructor() {
    super();
    (this.head as { weight: nn.Parameter }).weight = this.table.weight;
  }

  override forward(x: Tensor): Tensor {
    return this.head.call(this.table.call(x));
  }
}

const small = { vocabSize: 61, maxSeq: 20, layers: 2, heads: 2, channels: 16 };

function makeModel<M extends nn.Module>(make: () => M, device: Device, start: number): M {
  seed(start);
  const model = make();
  return model.to(device);
}

const bits = (model: nn.Module): [string, number[]][] =>
  Object.entries(model.stateDict()).map(([name, tensor]) => [
    name,
    [...tensor.toRaw()].map(Number),
  ]);

const inFolder =
  (body: (folder: string, device: Device) => Promise<void>) =>
  async (device: Device): Promise<void> => {
    const folder = mkdtempSync(join(tmpdir(), 'ds-save-weights-'));
    try {
      await body(folder, device);
    } finally {
      rmSync(folder, { recursive: true });
    }
  };

const refuses = (promise: Promise<unknown>, code: string, message: RegExp): Promise<void> =>
  assert.rejects(
    promise,
    (error: unknown) =>
      error instanceof DsError && error.code === code && message.test(error.message),
  );

const file = inFolder(async (folder, device) => {
  const [model, other] = [
    makeModel(() => new Tied(), device, 1),
    makeModel(() => new Tied(), device, 2),
  ];
  const path = join(folder, 'best.safetensors');
  assert.deepEqual(await nn.saveWeights(model, path), [path]);
  await nn.loadWeights(other, path);
  assert.deepEqual(bits(other), bits(model));
  assert.equal(other.head.weight, other.table.weight);
  const first = readFileSync(path);
  await nn.saveWeights(
    makeModel(() => new Tied(), device, 3),
    path,
  );
  assert.ok(!readFileSync(path).equals(first));
  assert.deepEqual([...readdirSync(folder)], ['best.safetensors']);
});

const folders = inFolder(async (folder, device) => {
  const model = makeModel(() => new nn.models.GPT2(small), device, 4);
  const fullTexts = await nn.saveWeights(model, join(folder, 'hf'));
  assert.deepEqual([...readdirSync(join(folder, 'hf'))].sort(), [
    'config.json',
    'model.safetensors',
  ]);
  assert.ok(fullTexts.includes(join(folder, 'hf/config.json')));
  const config = JSON.parse(readFileSync(join(folder, 'hf/config.json'), 'utf8'));
  assert.deepEqual([config.model_type, config.torch_dtype], ['gpt2', 'float32']);
  const again = await nn.models.GPT2.fromPretrained(join(folder, 'hf'));
  assert.deepEqual(bits(again), bits(model));
  const options = { format: 'native', maxShardBytes: 5000 } as const;
  const files = await nn.saveWeights(model, join(folder, 'native'), options);
  assert.ok(files.length > 4, `${files}`);
  const other = makeModel(() => new nn.models.GPT2(small), device, 5);
  await nn.loadWeights(other, join(folder, 'native'));
  assert.deepEqual(bits(other), bits(model));
});

const rounded = inFolder(async (folder, device) => {
  const model = makeModel(() => new Tied(), device, 6);
  const path = join(folder, 'half.safetensors');
  await nn.saveWeights(model, path, { dtype: 'bf16' });
  const other = makeModel(() => new Tied(), device, 7);
  await nn.loadWeights(other, path);
  assert.deepEqual(bits(other), bits(model.to('bf16').to('f32')));
  model.table.weight.initialize(nn.init.constant(1e5));
  await refuses(nn.saveWeights(model, path, { dtype: 'fp16' }), 'DS_NONFINITE', /fp16/);
  await nn.loadWeights(other, path);
  assert.deepEqual([...readdirSync(folder)], ['half.safetensors']);
});

const refusals = inFolder(async (folder, device) => {
  const model = makeModel(() => new Tied(), device, 8);
  const save = (path: string, options?: object) =>
    nn.saveWeights(model, join(folder, path), options);
  writeFileSync(join(folder, 'notes.safetensors'), 'no weights');
  await refuses(save('notes.safetensors'), 'DS_CHECKPOINT', /another file or a folder/);
  await refuses(save(''), 'DS_ARGUMENT', /empty/);
  await refuses(save('a', { format: 'hf' }), 'DS_ARGUMENT', /describe/);
  await refuses(save('a', { dtype: 'f32' }), 'DS_ARGUMENT', /fp32, fp16, bf16/);
  await refuses(save('a', { maxShardBytes: 0 }), 'DS_ARGUMENT', /positive/);
  await refuses(save('a', { shards: 2 }), 'DS_ARGUMENT', /maxShardBytes/);
  await refuses(nn.saveWeights(model, 3 as never), 'DS_ARGUMENT', /path/);
  await refuses(save('notes.safetensors/a.safetensors'), 'DS_IO', /notes/);
  const config = { train_micro_batch_size_per_gpu: 1, optimizer: { type: 'SGD' } } as const;
  const { engine } = await initialize({ model, config, device });
  await refuses(save('a'), 'DS_ARGUMENT', /save16bitModel/);
  engine.destroy();
  assert.deepEqual([...readdirSync(folder)], ['notes.safetensors']);
});

const frees = inFolder(async (folder, device) => {
  const model = makeModel(() => new nn.models.GPT2(small), device, 9);
  // The number of all tensors may fall meanwhile: others' are collected when they are.
  const copies: Tensor[] = [];
  observeCreation((copy) => void copies.push(copy));
  try {
    await nn.saveWeights(model, join(folder, 'hf'), { dtype: 'bf16' });
    await nn.saveWeights(model, join(folder, 'a.safetensors'));
  } finally {
    observeCreation(null);
  }
  assert.ok(copies.length > 0);
  assert.ok(copies.every(({ isDisposed }) => isDisposed));
});

export const cases: Case[] = [
  { name: 'saveWeights: a file comes back bit for bit and is replaced whole', run: file },
  { name: 'saveWeights: folders, in shards and as transformers reads them', run: folders },
  { name: 'saveWeights: another dtype, and what does not fit it', run: rounded },
  { name: 'saveWeights: what is refused, and leaves nothing', run: refusals },
  { name: 'saveWeights: copies are freed', run: frees },
];
