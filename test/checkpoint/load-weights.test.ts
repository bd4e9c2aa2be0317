// Tests nn.loadWeights: exports of a custom module load exactly, and mismatched files change
// nothing.
import { mkdirSync, mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';

import { consolidate } from '../../lib/checkpoint/index.js';
import { SafetensorsFile } from '../../lib/checkpoint/safetensors-file.js';
import { type TensorSource, writeSafetensors } from '../../lib/checkpoint/safetensors-writer.js';
import { type Engine, initialize, nn, seed, Tensor } from '../../lib/index.js';
import { cpu } from '../../lib/runtime/device.js';
import type { DType } from '../../lib/runtime/dtype.js';
import { reportsOf, runRanks } from '../comm/ranks.js';
import type { LoadReport } from './load-weights-process.js';
import { Sorter } from './sorter-model.js';

let root: string;
let checkpoints: string;
let engine: Engine;
/** The output of the trained module. */
let expected: number[];
/** Every tensor of the module by name. */
let saved: Map<string, Tensor>;
/** A file of save16bitModel(). */
let file: string;
beforeAll(async () => {
  root = mkdtempSync(join(tmpdir(), 'ds-load-weights-'));
  checkpoints = join(root, 'checkpoints');
  seed(7);
  const model = new Sorter();
  const config = { train_micro_batch_size_per_gpu: 1, optimizer: { type: 'AdamW' } } as const;
  ({ engine } = await initialize({ model, config, device: 'cpu' }));
  const words = Tensor.from(Int32Array.from([3, 0, 10]));
  for (let step = 0; step < 3; ++step) {
    engine.backward(engine.forward<Tensor>(words));
    engine.step();
  }
  engine.synchronize();
  model.loadStateDict(
    { shift: Tensor.from([0.5, -1, 2, 0.25, 3]), seen: Tensor.from(Int32Array.of(4, 5, 6)) },
    { strict: false },
  );
  expected = model.evaluate();
  await engine.saveCheckpoint(checkpoints);
  file = await engine.save16bitModel(join(root, '16bit'));
});
afterAll(() => {
  engine.destroy();
  rmSync(root, { recursive: true, force: true });
});
beforeEach(async () => {
  saved = new Map();
  for (const entry of (await SafetensorsFile.open(file)).entries) {
    const tensor = Tensor.empty(entry.shape, entry.dtype, cpu());
    await (await SafetensorsFile.open(file)).readInto(entry, tensor);
    saved.set(entry.name, tensor);
  }
});

const refusal = (message: RegExp, code = 'DS_CHECKPOINT') =>
  expect.objectContaining({ code, message: expect.stringMatching(message) });

/** A file with the present content of `saved`. */
async function rewritten(): Promise<string> {
  const path = join(root, 'changed.safetensors');
  const sources: TensorSource[] = Array.from(saved, ([name, values]) => {
    return { name, dtype: values.dtype, shape: values.shape, values };
  });
  await writeSafetensors(path, sources);
  return path;
}

function valuesOf(module: nn.Module): Record<string, number[]> {
  return Object.fromEntries(
    Object.entries(module.stateDict()).map(([name, tensor]) => [name, tensor.toArray()]),
  );
}

test.each<[string, () => Promise<string>]>([
  ['a file of save16bitModel', async () => file],
  ['its folder', async () => join(root, '16bit')],
  ['a consolidated folder', async () => (await consolidate(checkpoints, join(root, 'one'))).path],
  [
    'one in many files',
    async () => {
      const { path, files } = await consolidate(checkpoints, join(root, 'many'), {
        maxShardBytes: 150,
      });
      expect(files.length).toBeGreaterThan(4);
      return path;
    },
  ],
])('%s: a new module computes the same', async (_name, path) => {
  const model = new Sorter();
  expect(await nn.loadWeights(model, await path())).toEqual({ missing: [], unexpected: [] });
  expect(model.evaluate()).toEqual(expected);
  expect(valuesOf(model)).toEqual(valuesOf(engine.module));
});

test.each([1, 2])(
  'new processes, %d ranks: initialize() at stage 3 takes the values over',
  async (ranks) => {
    const job = { path: file };
    const results = await runRanks('../checkpoint/load-weights-process', ranks, { job });
    for (const { outputs, engineOutputs, afterwards } of reportsOf<LoadReport>(results)) {
      expect(outputs).toEqual(expected);
      expect(engineOutputs).toEqual(expected);
      expect(afterwards).toMatch(
        /^DS_ARGUMENT loadWeights: .*without an engine.*before initialize\(\)/,
      );
    }
  },
);

test('an engine trains from loaded weights as from the original values', async () => {
  const config = { train_micro_batch_size_per_gpu: 1, optimizer: { type: 'AdamW' } } as const;
  const [loaded, given] = [new Sorter(), new Sorter()];
  await nn.loadWeights(loaded, file);
  given.loadStateDict(Object.fromEntries(saved));
  const words = Tensor.from(Int32Array.from([3, 0, 10]));
  const ends: object[] = [];
  for (const model of [loaded, given]) {
    const { engine: own } = await initialize({ model, config, device: 'cpu' });
    own.backward(own.forward<Tensor>(words));
    own.step();
    own.synchronize();
    ends.push(valuesOf(model));
    own.destroy();
  }
  expect(ends[0]).toEqual(ends[1]);
  expect(ends[0]).not.toEqual(valuesOf(engine.module));
});

test.each<[DType, DType]>([
  ['f32', 'bf16'],
  ['f32', 'f16'],
  ['bf16', 'f32'],
  ['f16', 'bf16'],
])('%s values for a module in %s are rounded as to() does', async (from, to) => {
  for (const [name, values] of saved) if (values.dtype === 'f32') saved.set(name, values.to(from));
  const model = new Sorter().to(to);
  await nn.loadWeights(model, await rewritten());
  for (const [name, tensor] of Object.entries(model.stateDict())) {
    const values = saved.get(name) as Tensor;
    expect([name, tensor.dtype, tensor.toArray()]).toEqual([
      name,
      name === 'seen' ? 'i32' : name === 'shift' ? 'f32' : to,
      values.to(tensor.dtype).toArray(),
    ]);
  }
});

/** Writes an adapter with the file names of PEFT. */
function adapterIn(folder: string): string {
  mkdirSync(folder);
  for (const name of ['adapter_config.json', 'adapter_model.safetensors']) {
    writeFileSync(join(folder, name), '');
  }
  return folder;
}

describe('tied names', () => {
  const table = () => saved.get('table.weight') as Tensor;

  test('accepts either of the two, or both with equal values', async () => {
    saved.set('head.weight', table());
    for (const name of ['none', 'table.weight']) {
      saved.delete(name);
      const model = new Sorter();
      await nn.loadWeights(model, await rewritten());
      expect(model.evaluate()).toEqual(expected);
      expect(model.head.weight).toBe(model.table.weight);
    }
  });

  test('both with different values are refused', async () => {
    saved.set('head.weight', table().mul(2));
    await expect(nn.loadWeights(new Sorter(), await rewritten())).rejects.toEqual(
      refusal(/head\.weight: .*table\.weight/),
    );
  });
});

describe('what does not fit', () => {
  /** The call throws `message`, and the module keeps its values. */
  async function refuses(message: RegExp, options?: nn.LoadWeightsOptions): Promise<void> {
    const model = new Sorter();
    const before = valuesOf(model);
    const path = await rewritten();
    await expect(nn.loadWeights(model, path, options)).rejects.toEqual(refusal(message));
    expect(valuesOf(model)).toEqual(before);
  }

  test('one error lists all differences', async () => {
    for (const name of ['norm.bias', 'shift']) saved.delete(name);
    saved.set('extra', Tensor.from([1])).set('more', Tensor.from([1]));
    saved.set('norm.weight', Tensor.from([1, 2]));
    saved.set('blocks.1.up.weight', (saved.get('blocks.1.up.weight') as Tensor).to('i32'));
    saved.set('seen', Tensor.from(new Float32Array(3)));
    await refuses(
      /without norm\.bias, shift; with unexpected extra, more; .*norm\.weight \(\[2\] f32, not \[5\] f32\)/,
    );
    await refuses(/blocks\.1\.up\.weight \(\[7, 5\] i32, .*seen \(\[3\] f32, not \[3\] i32\)/);
    await refuses(/files with other shapes or types: /, { strict: false });
  });

  test('without strict the other tensors are loaded, and the missing ones are named', async () => {
    saved.delete('norm.bias');
    saved.set('extra', Tensor.from([1]));
    await refuses(/without norm\.bias; with unexpected extra/);
    const model = new Sorter();
    const { missing, unexpected } = await nn.loadWeights(model, await rewritten(), {
      strict: false,
    });
    expect([missing, unexpected]).toEqual([['norm.bias'], ['extra']]);
    const { 'norm.bias': bias, ...others } = valuesOf(model);
    expect(bias).toEqual([0, 0, 0, 0, 0]);
    expect(valuesOf(engine.module)).toMatchObject(others);
  });

  test('numbers beyond f16, in a module in f16', async () => {
    saved.set('norm.bias', Tensor.from([1, 1e6, 1, 1, 1]));
    const loading = nn.loadWeights(new Sorter().to('f16'), await rewritten());
    await expect(loading).rejects.toEqual(refusal(/norm\.bias: .*finite/, 'DS_NONFINITE'));
  });

  test('an unknown option, an unknown format and an undescribed layout are refused', async () => {
    for (const options of [{ strictly: true }, { format: 'pt' }, { format: 'hf' }]) {
      await expect(nn.loadWeights(new Sorter(), file, options as object)).rejects.toEqual(
        refusal(/loadWeights.*(strict|format)/, 'DS_ARGUMENT'),
      );
    }
  });

  test('loadWeights() after initialize() is refused', async () => {
    const model = new Sorter();
    const loading = nn.loadWeights(model, file);
    const config = { train_micro_batch_size_per_gpu: 1, optimizer: { type: 'AdamW' } } as const;
    const starting = initialize({ model, config, device: 'cpu' });
    await expect(loading).rejects.toEqual(refusal(/without an engine/, 'DS_ARGUMENT'));
    (await starting).engine.destroy();
  });

  test.each<[string, () => string, RegExp]>([
    ['a path of nothing', () => join(root, 'none'), /none: .*no such file/],
    ['a checkpoint', () => checkpoints, /a checkpoint of an engine\. .*loadCheckpoint.*ds export/],
    ['a folder with another name', () => root, /changed\.safetensors\. Pass the file/],
    [
      'an adapter of PEFT',
      () => adapterIn(join(root, 'adapter')),
      /an adapter of PEFT\. .*peft\.loadAdapter.*peft\.merge.*nn\.saveWeights/,
    ],
    ['a file of another kind', () => __filename, /load-weights\.test\.ts/],
  ])('%s', async (_name, path, message) => {
    await rewritten();
    await expect(nn.loadWeights(new Sorter(), path())).rejects.toEqual(refusal(message));
  });

  test('an index that leads out of its folder', async () => {
    const { path } = await consolidate(checkpoints, join(root, 'out'), { maxShardBytes: 150 });
    const index = { weight_map: { 'norm.bias': '../16bit/model.safetensors' } };
    writeFileSync(join(path, 'model.safetensors.index.json'), JSON.stringify(index));
    await expect(nn.loadWeights(new Sorter(), path)).rejects.toEqual(refusal(/in this folder/));
  });
});

test("Hugging Face's layout of a module, described by its config.json", async () => {
  class Square extends nn.Module {
    readonly proj = new nn.Linear(3, 3);
    override forward(x: Tensor): Tensor {
      return this.proj.call(x).mean();
    }
    override describe(): nn.PretrainedDescription {
      return { config: { model_type: 'square' }, transposed: ['proj.weight'] };
    }
  }
  const model = new Square();
  const config = { train_micro_batch_size_per_gpu: 1, optimizer: { type: 'AdamW' } } as const;
  const { engine: own } = await initialize({ model, config, device: 'cpu' });
  const dir = join(root, 'square');
  await own.saveCheckpoint(dir);
  const { path: reference } = await consolidate(dir, join(root, 'theirs'));
  const { path: ours } = await consolidate(dir, join(root, 'ours'), { format: 'native' });
  for (const [path, options] of [
    [reference, {}],
    [join(reference, 'model.safetensors'), {}],
    [ours, {}],
    [ours, { format: 'native' }],
    [reference, { format: 'hf' }],
  ] as const) {
    const loaded = new Square();
    await nn.loadWeights(loaded, path, options);
    expect(valuesOf(loaded)).toEqual(valuesOf(model));
  }
  const wrong = new Square();
  await nn.loadWeights(wrong, reference, { format: 'native' });
  expect(wrong.proj.weight.toArray()).toEqual(model.proj.weight.transpose(0, 1).toArray());
  own.destroy();
});
