// Exports: consolidated checkpoints in Hugging Face's layout and in ours, and GPT-2 read back from
// them.
import {
  mkdirSync,
  mkdtempSync,
  readdirSync,
  readFileSync,
  renameSync,
  rmSync,
  symlinkSync,
  writeFileSync,
} from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';

import { consolidate, WeightFiles } from '../../lib/checkpoint/index.js';
import { SafetensorsFile } from '../../lib/checkpoint/safetensors-file.js';
import { type TensorSource, writeSafetensors } from '../../lib/checkpoint/safetensors-writer.js';
import { type Engine, initialize, nn, noGrad, Tensor } from '../../lib/index.js';
import { cpu } from '../../lib/runtime/device.js';
import { Golden } from '../models/golden.js';
import { content, save } from './content.js';
import { tinyEngine } from './partitioned-engine.js';

const { GPT2 } = nn.models;

let root: string;
let dir: string;
let out: string;
let engine: Engine;
beforeAll(async () => {
  root = mkdtempSync(join(tmpdir(), 'ds-export-'));
  dir = join(root, 'checkpoints');
  engine = await tinyEngine(5, 2);
  await engine.saveCheckpoint(dir, { tag: 't' });
});
afterAll(() => {
  engine.destroy();
  rmSync(root, { recursive: true, force: true });
});
beforeEach(() => {
  out = join(root, 'out');
});
afterEach(() => rmSync(out, { recursive: true, force: true }));

function refusal(message: RegExp, code = 'DS_CHECKPOINT') {
  return expect.objectContaining({ code, message: expect.stringMatching(message) });
}

/** Every tensor of a safetensors file. */
async function tensorsOf(path: string): Promise<Map<string, Tensor>> {
  const file = await SafetensorsFile.open(path);
  const found = new Map<string, Tensor>();
  for (const entry of file.entries) {
    const tensor = Tensor.empty(entry.shape, entry.dtype, cpu());
    await file.readInto(entry, tensor);
    found.set(entry.name, tensor);
  }
  return found;
}

/** The master weights of a parameter, or its values where it is frozen. */
function exact(name: string): Tensor {
  const { stage, state } = engine.parts;
  for (const partition of stage.partitions) {
    const fragment = partition.fragments.find(({ entry }) => entry.name === name);
    if (fragment) return state.lend(partition, fragment, 'master').tensor;
  }
  return engine.module.stateDict()[name] as Tensor;
}

const isConv1d = (name: string) => /\.(c_attn|c_proj|c_fc)\.weight$/.test(name);

test("Hugging Face's layout: config.json, names, transposed projections, exact values", async () => {
  const { format, files } = await consolidate(dir, out);
  expect(format).toBe('hf');
  expect([...files].sort()).toEqual(['config.json', 'model.safetensors']);
  expect(readdirSync(out).sort()).toEqual(['config.json', 'model.safetensors']);
  expect(JSON.parse(readFileSync(join(out, 'config.json'), 'utf8'))).toMatchObject({
    architectures: ['GPT2LMHeadModel'],
    model_type: 'gpt2',
    vocab_size: 131,
    n_positions: 32,
    n_embd: 36,
    n_layer: 2,
    n_head: 2,
    activation_function: 'gelu_new',
    tie_word_embeddings: true,
    torch_dtype: 'float32',
  });
  const tensors = await tensorsOf(join(out, 'model.safetensors'));
  expect([...tensors.keys()]).toEqual([...engine.module.namedParameters()].map(([name]) => name));
  for (const [name, tensor] of tensors) {
    const localTensor = exact(name);
    const [m = 0, n = 0] = localTensor.shape;
    expect(tensor.shape).toEqual(isConv1d(name) ? [n, m] : localTensor.shape);
    const values = localTensor.toArray();
    const expected = isConv1d(name)
      ? Array.from({ length: m * n }, (_, i) => values[(i % m) * n + Math.floor(i / m)])
      : values;
    expect(tensor.toArray()).toEqual(expected);
  }
});

test.each([
  ['one file', 5e9],
  ['many files', 20_000],
  ['a file for each tensor', 1],
])('GPT2.fromPretrained reads %s and computes the same logits', async (_name, maxShardBytes) => {
  const golden = await Golden.read(join(__dirname, '..', 'golden', 'gpt2-tiny'), cpu());
  const model = golden.model(cpu());
  const { engine: other } = await initialize({
    model,
    config: {
      train_batch_size: 1,
      optimizer: { type: 'AdamW' },
    },
    device: 'cpu',
  });
  const from = join(root, `golden${maxShardBytes}`);
  await other.saveCheckpoint(from);
  await consolidate(from, out, { maxShardBytes });
  const read = await GPT2.fromPretrained(out);
  noGrad(() => {
    const logits = read.call(golden.tensor('tokens'));
    const expected = model.call(golden.tensor('tokens'));
    expect(logits.toArray()).toEqual(expected.toArray());
  });
  expect(readdirSync(out).includes('model.safetensors.index.json')).toBe(maxShardBytes < 5e9);
  golden.release();
  other.destroy();
});

test('an index lists every tensor once, in files within the limit', async () => {
  await consolidate(dir, out, { maxShardBytes: 30_000 });
  const index = JSON.parse(readFileSync(join(out, 'model.safetensors.index.json'), 'utf8'));
  const files = readdirSync(out).filter((name) => name.endsWith('.safetensors'));
  expect(files.length).toBeGreaterThan(3);
  let total = 0;
  for (const file of files) {
    expect(file).toMatch(new RegExp(`^model-\\d{5}-of-0*${files.length}\\.safetensors$`));
    const { entries } = await SafetensorsFile.open(join(out, file));
    for (const { name } of entries) expect(index.weight_map[name]).toBe(file);
    const bytes = entries.reduce((sum, { start, end }) => sum + end - start, 0);
    expect(entries.length === 1 || bytes <= 30_000).toBe(true);
    total += bytes;
  }
  expect(index.metadata.total_size).toBe(total);
  expect(Object.keys(index.weight_map)).toHaveLength(engine.module.parameters().length);
});

test.each(['bf16', 'fp16'] as const)('%s and native: rounded, in our own layout', async (dtype) => {
  const { format } = await consolidate(dir, out, { tag: 't', dtype, format: 'native' });
  expect([format, readdirSync(out)]).toEqual(['native', ['model.safetensors']]);
  for (const [name, tensor] of await tensorsOf(join(out, 'model.safetensors'))) {
    const rounded = exact(name).to(dtype === 'bf16' ? 'bf16' : 'f16');
    expect([name, tensor.dtype, tensor.shape]).toEqual([name, rounded.dtype, rounded.shape]);
    expect(tensor.toRaw()).toEqual(rounded.toRaw());
  }
});

test('save16bitModel writes the weights as they are', async () => {
  const path = await engine.save16bitModel(join(out, 'new'), 'w.safetensors');
  expect(readdirSync(join(out, 'new'))).toEqual(['w.safetensors']);
  const tensors = await tensorsOf(path);
  for (const [name, parameter] of engine.module.namedParameters()) {
    expect(tensors.get(name)?.toRaw()).toEqual(parameter.toRaw());
  }
  for (const file of ['../x', 'a/b', '', '..']) {
    await expect(engine.save16bitModel(out, file)).rejects.toEqual(
      refusal(/file name/, 'DS_ARGUMENT'),
    );
  }
});

test('refusals leave nothing behind', async () => {
  await expect(consolidate(dir, out, { tag: 'u' })).rejects.toEqual(refusal(/"u".*the tags t/));
  await expect(consolidate(dir, out, { maxShardByte: 1 } as object)).rejects.toEqual(
    refusal(/"maxShardByte".*Did you mean "maxShardBytes"/, 'DS_ARGUMENT'),
  );
  await expect(consolidate(dir, out, { maxShardBytes: 0 })).rejects.toEqual(
    refusal(/maxShardBytes/, 'DS_ARGUMENT'),
  );
  const plain = join(root, 'plain');
  await save(plain, 't', content(70_000));
  await expect(consolidate(plain, out, { format: 'hf' })).rejects.toEqual(refusal(/describe\(\)/));
  await expect(consolidate(plain, out, { dtype: 'fp16' })).rejects.toEqual(
    refusal(/w: .*finite.*bf16/, 'DS_NONFINITE'),
  );
  expect(readdirSync(root).filter((name) => name === 'out' || name.startsWith('.'))).toEqual([]);
  mkdirSync(out);
  writeFileSync(join(out, 'mine'), '');
  await expect(consolidate(dir, out)).rejects.toEqual(
    refusal(/a folder that contains mine/, 'DS_ARGUMENT'),
  );
  expect(readdirSync(out)).toEqual(['mine']);
});

describe('what GPT2.fromPretrained takes and refuses', () => {
  test('a path is not looked up in the hub, a name is', async () => {
    await expect(GPT2.fromPretrained('./gpt2')).rejects.toEqual(
      refusal(/^\.\/gpt2: expected a folder with config\.json.*Check the path/),
    );
    await expect(GPT2.fromPretrained('org/no-such-model')).rejects.toEqual(
      refusal(/^org\/no-such-model: expected a folder on this machine, or a model/, 'DS_HUB'),
    );
  });

  let tensors: Map<string, Tensor>;
  let config: Record<string, unknown>;
  beforeEach(async () => {
    await consolidate(dir, out);
    tensors = await tensorsOf(join(out, 'model.safetensors'));
    config = JSON.parse(readFileSync(join(out, 'config.json'), 'utf8'));
  });

  async function rewrite(rename = (name: string) => name): Promise<void> {
    const sources: TensorSource[] = Array.from(tensors, ([name, values]) => {
      return { name: rename(name), dtype: values.dtype, shape: values.shape, values };
    });
    await writeSafetensors(join(out, 'model.safetensors'), sources);
    writeFileSync(join(out, 'config.json'), JSON.stringify(config));
  }

  const wte = () => tensors.get('transformer.wte.weight') as Tensor;

  test('names without "transformer.", masks, a tied head, options of this library', async () => {
    tensors.set('transformer.h.0.attn.bias', Tensor.from(new Uint8Array(4)));
    tensors.set('transformer.h.1.attn.masked_bias', Tensor.from([-1e4]));
    tensors.set('transformer.lm_head.weight', wte());
    await rewrite((name) => name.replace(/^transformer\./, ''));
    const model = await GPT2.fromPretrained(out, { dropout: 0.2 });
    expect(model.config).toMatchObject({ dropout: 0.2, layers: 2, channels: 36 });
    for (const [name, parameter] of model.namedParameters()) {
      expect(parameter.toArray()).toEqual(exact(name).toArray());
    }
  });

  test.each<[string, () => void, RegExp]>([
    ['a head of its own', () => tensors.set('lm_head.weight', wte().mul(2)), /lm_head.weight/],
    [
      'a weight too few',
      () => tensors.delete('transformer.ln_f.bias'),
      /without transformer\.ln_f\.bias\./,
    ],
    ['a weight too many', () => tensors.set('extra', wte()), /unexpected extra\./],
    [
      'another shape',
      () => tensors.set('transformer.ln_f.bias', wte()),
      /ln_f.bias \(.*not \[36\]/,
    ],
    ['whole numbers', () => tensors.set('transformer.ln_f.bias', wte().to('i32')), /ln_f.bias/],
    ['another model', () => Object.assign(config, { model_type: 'llama' }), /"gpt2", got "llama"/],
    [
      'another activation',
      () => Object.assign(config, { activation_function: 'relu' }),
      /gelu_new/,
    ],
    ['another epsilon', () => Object.assign(config, { layer_norm_epsilon: 1e-6 }), /epsilon/],
    ['a wider MLP', () => Object.assign(config, { n_inner: 100 }), /n_inner/],
    ['an untied head', () => Object.assign(config, { tie_word_embeddings: false }), /tie_word/],
    ['a billion layers', () => Object.assign(config, { n_layer: 1e9 }), /n_layer/],
    ['no size', () => Object.assign(config, { n_embd: '36' }), /n_embd: .*"36"/],
  ])('%s', async (_name, change, message) => {
    change();
    await rewrite();
    await expect(GPT2.fromPretrained(out)).rejects.toEqual(refusal(message));
  });

  test.each<[string, unknown, RegExp]>([
    ['..', { w: '../model.safetensors' }, /in this folder, got "..\/model/],
    ['an absolute path', { w: '/etc/x.safetensors' }, /in this folder/],
    ['a folder below', { w: 'a/x.safetensors' }, /in this folder/],
    ['another kind of file', { w: 'config.json' }, /safetensors/],
    ['a number', { w: 7 }, /in this folder, got 7/],
    ['no map', [], /weight_map/],
    ['a link', { w: 'link.safetensors' }, /symbolic link/],
    ['a file that is missing', { w: 'none.safetensors' }, /no such file/],
    [
      'a tensor that the file has not got',
      { w: 'whole.safetensors' },
      /: w: .*got no tensor of this name/,
    ],
  ])('an index with %s', async (_name, map, message) => {
    renameSync(join(out, 'model.safetensors'), join(out, 'whole.safetensors'));
    symlinkSync(
      join(dir, 't', 'mp_rank_00_model_states.safetensors'),
      join(out, 'link.safetensors'),
    );
    writeFileSync(join(out, 'model.safetensors.index.json'), JSON.stringify({ weight_map: map }));
    await expect(WeightFiles.open(out)).rejects.toEqual(refusal(message));
  });

  test.each<[string, string]>([
    ['files of another time', 'model-00001-of-00001.safetensors'],
    ['files that are not there', 'none.safetensors'],
  ])('an index of %s does not count beside model.safetensors', async (_name, file) => {
    const weight = wte().mul(2);
    const source = { name: 'transformer.wte.weight', dtype: 'f32' as const, shape: weight.shape };
    const path = join(out, 'model-00001-of-00001.safetensors');
    await writeSafetensors(path, [{ ...source, values: weight }]);
    const map = Object.fromEntries(Array.from(tensors.keys(), (name) => [name, file]));
    writeFileSync(join(out, 'model.safetensors.index.json'), JSON.stringify({ weight_map: map }));
    const read = await GPT2.fromPretrained(out);
    expect(read.transformer.wte.weight.toArray()).toEqual(wte().toArray());
  });

  test('an index that lists model.safetensors among other files is used', async () => {
    const [name, values] = [
      'transformer.ln_f.bias',
      tensors.get('transformer.ln_f.bias') as Tensor,
    ];
    tensors.delete(name);
    await rewrite();
    const source = { name, dtype: values.dtype, shape: values.shape, values };
    await writeSafetensors(join(out, 'rest.safetensors'), [source]);
    const names = Array.from(tensors.keys(), (text) => [text, 'model.safetensors']);
    const map = { ...Object.fromEntries(names), [name]: 'rest.safetensors' };
    writeFileSync(join(out, 'model.safetensors.index.json'), JSON.stringify({ weight_map: map }));
    expect((await GPT2.fromPretrained(out)).parameters()).not.toHaveLength(0);
  });

  test('a pickle is refused with the fix', async () => {
    rmSync(join(out, 'model.safetensors'));
    writeFileSync(join(out, 'pytorch_model.bin'), '');
    await expect(GPT2.fromPretrained(out)).rejects.toEqual(refusal(/safe_serialization=True/));
  });
});
