// GGUF files of every family that is written: read back they give the same logits, within the
// precision of the type, and the same text as their tokenizer.
import { createHash } from 'node:crypto';
import { copyFileSync, mkdtempSync, readdirSync, readFileSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { F32, readGgufHeader, type WrittenValue, writeGguf } from '../../lib/checkpoint/index.js';
import { nn, noGrad, Tensor } from '../../lib/index.js';
import { ARCHITECTURES } from '../../lib/models/gguf/architectures.js';
import type { RotaryLM } from '../../lib/models/index.js';
import { replaceByMxfp4 } from '../../lib/models/quantized/mxfp4.js';
import { Mxfp4Experts } from '../../lib/nn/mxfp4-experts.js';
import type { JsonObject } from '../../types/json.js';
import { contentsOf, splitGguf } from '../support/gguf-split.js';
import { refusal } from '../support/refusal.js';

const golden = join('test', 'golden', 'transformers');
const folder = mkdtempSync(join(tmpdir(), 'ds-gguf-'));
afterAll(() => rmSync(folder, { recursive: true }));

/** A factor of sines other than 1 has no key in files. */
const DEEPSEEK_ROPE = {
  rope_type: 'yarn',
  factor: 4,
  original_max_position_embeddings: 32,
  rope_theta: 10_000,
  mscale: 0.8,
  mscale_all_dim: 0.8,
};

/** llama.cpp reads shared keys of the last two layers before. */
const GEMMA4 = {
  num_hidden_layers: 4,
  layer_types: [1, 2].flatMap(() => ['sliding_attention', 'full_attention']),
  per_layer_config: { 1: { head_dim: 14 }, 3: { head_dim: 14 } },
};

/** llama.cpp has one width of delta nets. */
const DELTA = { linear_value_head_dim: 6 };

/** Golden folders of the architectures, and settings that llama.cpp fixes in another way. */
const FAMILIES: Readonly<Record<string, JsonObject>> = {
  llama: {},
  'llama-tied': {},
  apertus: {},
  qwen2: {},
  qwen3: {},
  'qwen3-moe': {},
  mixtral: {},
  gemma: {},
  phi3: {},
  'phi3-longrope': {},
  olmo2: {},
  granite: {},
  mistral: { sliding_window: null },
  gemma2: { query_pre_attn_scalar: 12 },
  gemma3: { query_pre_attn_scalar: 12, layer_types: Array(2).fill('sliding_attention') },
  smollm3: { no_rope_layers: [1, 1, 1] },
  stablelm: {},
  'stablelm-parallel': {},
  phi: {},
  cohere: {},
  glm4: {},
  starcoder2: { sliding_window: null },
  cohere2: { layer_types: Array(2).fill('sliding_attention') },
  ernie: { use_bias: false },
  exaone4: { sliding_window: null, layer_types: Array(2).fill('full_attention') },
  arcee: {},
  nemotron: {},
  'seed-oss': { mlp_bias: false },
  olmo: {},
  'gpt-neox': {},
  internlm2: {},
  falcon: {},
  bloom: {},
  'gpt-bigcode': {},
  'granite-moe': {},
  'falcon-sequential': {
    new_decoder_architecture: false,
    parallel_attn: true,
    multi_query: true,
    bias: false,
  },
  'qwen2-moe': {
    norm_topk_prob: false,
    mlp_only_layers: [],
    use_sliding_window: false,
    layer_types: null,
  },
  olmoe: { num_key_value_heads: 4, norm_topk_prob: false },
  'minimax-m2': {},
  exaone: {},
  hunyuan: {},
  'ernie-moe': {},
  dots1: { use_sliding_window: false, layer_types: null, num_key_value_heads: 4 },
  'glm4-moe': { n_group: 1, topk_group: 1 },
  'gpt-oss': {},
  'deepseek-v3': { rope_parameters: DEEPSEEK_ROPE },
  'glm4-moe-lite': {},
  'deepseek-v2': { n_group: 1, topk_group: 1, topk_method: 'greedy' },
  gemma4: GEMMA4,
  'gemma4-moe': {},
  'qwen3-5': DELTA,
  'qwen3-5-moe': DELTA,
  olmo3: {},
  glm: {},
  minicpm: {},
  'qwen3-next': { ...DELTA, mlp_only_layers: [] },
  'granite-hybrid': {},
  ministral3: {},
  // llama.cpp decides by the number of layers.
  baichuan: { num_hidden_layers: 32, intermediate_size: 8 },
  'baichuan-alibi': { num_hidden_layers: 40, intermediate_size: 8 },
};

/** Families whose files are read in all types; packing does not depend on the family. */
const ALL_TYPES = ['llama', 'gemma', 'granite-moe', 'gpt-oss'];

/** Families that are read as another, with the same computation. */
const READ_AS: Readonly<Record<string, string>> = {
  mistral: 'Llama',
  internlm2: 'Llama',
  'glm4-moe-lite': 'DeepseekV3',
  'granite-hybrid': 'Granite',
};

/** Families with other shapes than their folders, or other layers: random weights. */
const RESIZED = [
  'falcon-sequential',
  'qwen2-moe',
  'olmoe',
  'dots1',
  'gemma4',
  'qwen3-5',
  'qwen3-5-moe',
  'qwen3-next',
  'baichuan',
  'baichuan-alibi',
];

/** The model of a golden folder with other settings. */
async function changeTensor(name: string): Promise<RotaryLM> {
  const dir = join(golden, 'models', name);
  const config = JSON.parse(readFileSync(join(dir, 'config.json'), 'utf8')) as JsonObject;
  const model = nn.models.fromConfig({ ...config, ...FAMILIES[name] });
  // These folders have biases, which llama.cpp ignores, or other shapes.
  if (RESIZED.includes(name)) return model as RotaryLM;
  const strict = name !== 'ernie' && name !== 'seed-oss';
  await nn.loadWeights(model, join(dir, 'model.safetensors'), { format: 'hf', strict });
  return model as RotaryLM;
}

const readBack = (path: string): Promise<RotaryLM> =>
  nn.models.fromPretrained(path, { dtype: 'f32' }) as Promise<RotaryLM>;

function logitsOf(model: RotaryLM): Float32Array {
  const { vocabSize } = model.config;
  const ids = Array.from({ length: 40 }, (_, i) => (i * 37 + 11) % vocabSize);
  const tokens = Tensor.from([ids.slice(0, 20), ids.slice(20)], { dtype: 'i32' });
  return model.eval().call(tokens).toRaw() as Float32Array;
}

function difference(a: Float32Array, b: Float32Array): number {
  const sum = (of: (i: number) => number): number => a.reduce((s, _, i) => s + of(i) ** 2, 0);
  return Math.sqrt(sum((i) => (a[i] as number) - (b[i] as number)) / sum((i) => a[i] as number));
}

test('every architecture has a golden folder', async () => {
  const types = new Set<unknown>();
  for (const name of Object.keys(FAMILIES))
    types.add((await changeTensor(name)).describe().config.model_type);
  const written = ARCHITECTURES.flatMap(({ modelTypes }) => modelTypes);
  expect(written.filter((type) => !types.has(type))).toEqual([]);
});

test('layers that predict later tokens are not read', async () => {
  const path = join(folder, 'predicting.gguf');
  await nn.saveGguf(await changeTensor('glm4-moe'), path, { type: 'F32' });
  const { entries, tensors, pieces } = contentsOf(path);
  const metadata = new Map<string, WrittenValue>(entries);
  const blocks = metadata.get('glm4moe.block_count') as number;
  metadata.set('glm4moe.nextn_predict_layers', 1);
  const changedPath = join(folder, 'predicted.gguf');
  await writeGguf(changedPath, { metadata, tensors }, pieces);
  expect((await readBack(changedPath)).config.layers).toBe(blocks - 1);
});

test('the metadata has the numbers of layers', async () => {
  const path = join(folder, 'numbers.gguf');
  await nn.saveGguf(await changeTensor('apertus'), path, { type: 'F32' });
  const { entries, tensors, pieces } = contentsOf(path);
  const listed = entries.map(([key, value]): [string, WrittenValue] =>
    key.startsWith('xielu.')
      ? [key, Float32Array.from(value as unknown as number[])]
      : [key, value],
  );
  const write = async (value: WrittenValue): Promise<string> => {
    const place = join(folder, 'changed-numbers.gguf');
    rmSync(place, { force: true });
    await writeGguf(
      place,
      { metadata: new Map([...listed, ['xielu.alpha_n', value]]), tensors },
      pieces,
    );
    return place;
  };
  const model = await readBack(await write(new F32(0.5)));
  const numbers = [...model.namedParameters()].filter(([name]) => name.endsWith('alpha_n'));
  expect(numbers.map(([, one]) => one.toArray())).toEqual([[0.5], [0.5]]);
  const message = /xielu\.alpha_n: expected a number for each of 2 layers, got /;
  for (const value of [Float32Array.of(1), Float32Array.of(1, Number.NaN), 'one']) {
    const place = await write(value);
    expect((await refusal(() => readBack(place))).message).toMatch(message);
  }
});

test('a model in several files is read by the name of the first', async () => {
  // Its experts are put together from tensors of all files.
  const model = await changeTensor('mixtral');
  const path = join(folder, 'whole.gguf');
  await nn.saveGguf(model, path, { type: 'F32' });
  const first = await splitGguf(path, 3);
  expect(logitsOf(await readBack(first))).toEqual(logitsOf(await readBack(path)));
  const messageOf = async (file: string) =>
    (await refusal(() => nn.models.fromPretrained(file))).message;
  const second = first.replace('-00001-', '-00002-');
  expect(await messageOf(second)).toMatch(/split\.no: expected 0, the first file, got 1/);
  await splitGguf(path, 3, (file) => (file === 2 ? [['split.no', 1]] : []));
  expect(await messageOf(first)).toMatch(/00003\.gguf: split\.no: expected 2, got 1/);
  await splitGguf(path, 3, (file) => (file === 1 ? [['split.count', 4]] : []));
  expect(await messageOf(first)).toMatch(/00002-of-00003\.gguf: split\.count: expected 3, got 4/);
  await splitGguf(path, 3, () => [['split.tensors.count', 7]]);
  expect(await messageOf(first)).toMatch(/split\.tensors\.count: expected \d+, the number/);
  await splitGguf(path, 3);
  rmSync(second);
  const missing = await refusal(() => nn.models.fromPretrained(first));
  expect(missing).toMatchObject({
    code: 'DS_IO',
    hint: expect.stringContaining('Download all files of the model'),
  });
  const renamed = join(folder, 'renamed.gguf');
  copyFileSync(first, renamed);
  expect(await messageOf(renamed)).toMatch(/a name that ends in -00001-of-00003\.gguf/);
});

test('experts in MXFP4 are kept in 4 bits, and give the values that the file has', async () => {
  const config = JSON.parse(readFileSync(join(golden, 'models', 'gpt-oss', 'config.json'), 'utf8'));
  const sizes = { hidden_size: 64, intermediate_size: 32 };
  const model = nn.models.fromConfig({ ...config, ...sizes }) as RotaryLM;
  const [path, again] = ['mxfp4', 'again'].map((name) => join(folder, `${name}.gguf`)) as [
    string,
    string,
  ];
  await nn.saveGguf(model, path, { type: 'MXFP4' });
  const [plain, kept] = [await readBack(path), await readBack(path)];
  replaceByMxfp4(kept);
  const isKept = (module: nn.Module): boolean => module instanceof Mxfp4Experts;
  expect([...kept.modules()].filter(isKept)).toHaveLength(2);
  expect(difference(logitsOf(plain), logitsOf(kept))).toBeLessThan(1e-5);
  // The nearest codes of decoded values are the same codes.
  await nn.saveGguf(plain, again, { type: 'MXFP4' });
  const experts = (file: string) => {
    const bytes = readFileSync(file);
    const read = (at: number, into: Uint8Array): void => void bytes.copy(into, 0, at);
    const { tensors } = readGgufHeader(file, bytes.length, read);
    const found = tensors.filter(({ type }) => type.name === 'MXFP4');
    return found.map(({ name, start, bytes: size }) => [
      name,
      createHash('sha256')
        .update(bytes.subarray(start, start + size))
        .digest('hex'),
    ]);
  };
  expect(experts(path)).toHaveLength(6);
  expect(experts(again)).toEqual(experts(path));
});

test('a write that fails leaves the file of before, and nothing else', async () => {
  const model = await changeTensor('qwen3');
  const path = join(folder, 'kept.gguf');
  await nn.saveGguf(model, path, { type: 'F32' });
  const before = readFileSync(path);
  const files = readdirSync(folder);
  const [weight] = model.parameters();
  noGrad(() => (weight as nn.Parameter).fill_(Number.NaN));
  const error = await refusal(() => nn.saveGguf(model, path, { type: 'Q8_0' }));
  expect([error.code, error.message]).toEqual([
    'DS_NONFINITE',
    expect.stringContaining('saveGguf model.embed_tokens.weight: expected numbers from -65504'),
  ]);
  expect(readFileSync(path).equals(before)).toBe(true);
  expect(readdirSync(folder)).toEqual(files);
});

test('biases that llama.cpp ignores are refused', async () => {
  const config = JSON.parse(readFileSync(join(golden, 'models', 'ernie', 'config.json'), 'utf8'));
  const model = nn.models.fromConfig({ ...config, use_bias: true });
  const error = await refusal(() => nn.saveGguf(model, join(folder, 'biases.gguf')));
  expect([error.code, error.message]).toEqual([
    'DS_ARGUMENT',
    expect.stringContaining('expected tensors of ernie4_5 in llama.cpp, got model.layers.0'),
  ]);
});

test.each([
  ['olmoe', { num_key_value_heads: 2 }, /kvHeads: expected 4, as many as heads, got 2/],
  ['qwen2-moe', { norm_topk_prob: true }, /moe normalize: expected false, got true/],
  ['qwen2-moe', { mlp_only_layers: [1] }, /moe denseLayers: expected no dense layers/],
  ['glm4-moe', { n_group: 2, topk_group: 1 }, /moe groups: expected 1, got 2/],
  ['falcon-sequential', { parallel_attn: false }, /parallel: expected true, got false/],
  ['qwen3-5', { linear_value_head_dim: 5 }, /delta valueDim: expected 6, as keyDim, got 5/],
  ['gemma4', { num_kv_shared_layers: 1 }, /sharedKeys: expected after a layer with a window/],
  ['deepseek-v2', { n_group: 2, topk_method: 'group_limited_greedy' }, /groups: expected 1, got 2/],
  ['deepseek-v3', { rope_parameters: { ...DEEPSEEK_ROPE, mscale: 1 } }, /mscale: expected 0.8/],
  ['baichuan', { num_hidden_layers: 33 }, /32 layers with .*, or 40 with .*, got 33 layers/],
  ['baichuan-alibi', { num_hidden_layers: 32 }, /or 40 with biased scores, got 32 layers/],
  ['seed-oss', { mlp_bias: true }, /expected tensors of seed_oss in llama.cpp, got .*mlp/],
])('a setting of %s that llama.cpp lacks is refused: %j', async (name, settings, message) => {
  const config = JSON.parse(readFileSync(join(golden, 'models', name, 'config.json'), 'utf8'));
  const model = nn.models.fromConfig({ ...config, ...FAMILIES[name], ...settings });
  const error = await refusal(() => nn.saveGguf(model, join(folder, 'lost.gguf')));
  expect([error.code, error.message]).toEqual(['DS_ARGUMENT', expect.stringMatching(message)]);
});

test('a Baichuan file of another number of layers is refused', async () => {
  const [path, changedPath] = ['layers', 'changed-layers'].map((name) =>
    join(folder, `${name}.gguf`),
  ) as [string, string];
  await nn.saveGguf(await changeTensor('baichuan'), path, { type: 'F32' });
  const { entries, tensors, pieces } = contentsOf(path);
  const metadata = new Map<string, WrittenValue>(entries).set('baichuan.block_count', 31);
  await writeGguf(changedPath, { metadata, tensors }, pieces);
  const { message } = await refusal(() => readBack(changedPath));
  expect(message).toMatch(/block_count: expected 32 layers with rotary .*, got 31/);
});

test.each([
  [[null, 'x.gguf'], /saveGguf: expected .*got null/],
  [[{}, 'x.gguf'], /saveGguf: expected .*Module/],
  [['model', 3], /saveGguf path: expected a string/],
  [['model', 'folder'], /saveGguf path: expected a name that ends in \.gguf/],
  [['model', 'x.gguf', { type: 'Q3_K' }], /saveGguf type: expected F32, F16, Q8_0, MXFP4, Q4_K_M/],
  [
    ['model', 'x.gguf', { type: 'MXFP4' }],
    /type: expected another type for a model without experts/,
  ],
  [['model', 'x.gguf', { type: 'constructor' }], /saveGguf type/],
  [['model', 'x.gguf', { tokenizer: 5 }], /saveGguf tokenizer: expected a string/],
  [['model', 'x.gguf', { kind: 'F16' }], /kind/],
])('wrong arguments are refused: %j', async (input, message) => {
  const [first, ...rest] = input as unknown[];
  const model = first === 'model' ? await changeTensor('qwen3') : first;
  const error = await refusal(() => Reflect.apply(nn.saveGguf, null, [model, ...rest]));
  expect([error.code, error.message]).toEqual(['DS_ARGUMENT', expect.stringMatching(message)]);
});

test('a missing .gguf file is not looked up on the hub', async () => {
  const error = await refusal(() => nn.models.fromPretrained('missing.gguf'));
  expect([error.code, error.got]).toEqual(['DS_CHECKPOINT', 'nothing of this name']);
});

test('a folder that cannot be written is an error that names it', async () => {
  const error = await refusal(async () =>
    nn.saveGguf(await changeTensor('qwen3'), '/proc/model.gguf', { type: 'F32' }),
  );
  expect(error.code).toBe('DS_IO');
  expect(error.op).toMatch(/^open \/proc\/\.model\.gguf\./);
});

test.each(Object.keys(FAMILIES))('%s is read back', async (name) => {
  const model = await changeTensor(name);
  const expected = logitsOf(model);
  const all = [
    ['F32', 1e-6],
    ['F16', 2e-3],
    ['Q8_0', 0.05],
    ['Q4_K_M', 0.6],
  ] as const;
  const types = ALL_TYPES.includes(name) ? all : all.slice(0, 1);
  for (const [type, limit] of types) {
    const path = join(folder, `${name}-${type}.gguf`);
    await nn.saveGguf(model, path, { type });
    const back = await readBack(path);
    expect(back.constructor.name).toBe(READ_AS[name] ?? model.constructor.name);
    expect(difference(expected, logitsOf(back))).toBeLessThanOrEqual(limit);
  }
});
