// GGUF files of every family that is written: read back they give the same logits, within the
// precision of the type, and the same text as their tokenizer.
import { mkdtempSync, readdirSync, readFileSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { nn, noGrad, Tensor } from '../../lib/index.js';
import { ARCHITECTURES } from '../../lib/models/gguf/architectures.js';
import type { RotaryLM } from '../../lib/models/index.js';
import type { JsonObject } from '../../types/json.js';
import { refusal } from '../support/refusal.js';

const golden = join('test', 'golden', 'transformers');
const folder = mkdtempSync(join(tmpdir(), 'ds-gguf-'));
afterAll(() => rmSync(folder, { recursive: true }));

/** Golden folders of the architectures, and settings that llama.cpp fixes in another way. */
const FAMILIES: Readonly<Record<string, JsonObject>> = {
  ...{ llama: {}, 'llama-tied': {}, qwen2: {}, qwen3: {}, 'qwen3-moe': {}, mixtral: {}, gemma: {} },
  ...{ phi3: {}, 'phi3-longrope': {}, olmo2: {}, granite: {}, mistral: { sliding_window: null } },
  gemma2: { query_pre_attn_scalar: 12 },
  gemma3: { query_pre_attn_scalar: 12, layer_types: Array(2).fill('sliding_attention') },
  smollm3: { no_rope_layers: [1, 1, 1] },
  ...{ stablelm: {}, 'stablelm-parallel': {}, phi: {}, cohere: {}, glm4: {} },
  starcoder2: { sliding_window: null },
  cohere2: { layer_types: Array(2).fill('sliding_attention') },
  ernie: { use_bias: false },
  exaone4: { sliding_window: null, layer_types: Array(2).fill('full_attention') },
};

/** The model of a golden folder with other settings. */
async function changed(name: string): Promise<RotaryLM> {
  const dir = join(golden, 'models', name);
  const config = JSON.parse(readFileSync(join(dir, 'config.json'), 'utf8')) as JsonObject;
  const model = nn.models.fromConfig({ ...config, ...FAMILIES[name] });
  // The folder of ERNIE has biases, which llama.cpp ignores.
  const strict = name !== 'ernie';
  await nn.loadWeights(model, join(dir, 'model.safetensors'), { format: 'hf', strict });
  return model as RotaryLM;
}

const read = (path: string): Promise<RotaryLM> =>
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
    types.add((await changed(name)).describe().config.model_type);
  const written = ARCHITECTURES.flatMap(({ modelTypes }) => modelTypes);
  expect(written.filter((type) => !types.has(type))).toEqual([]);
});

test('a write that fails leaves the file of before, and nothing else', async () => {
  const model = await changed('qwen3');
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
  [[null, 'x.gguf'], /saveGguf: expected .*got null/],
  [[{}, 'x.gguf'], /saveGguf: expected .*Module/],
  [['model', 3], /saveGguf path: expected a string/],
  [['model', 'folder'], /saveGguf path: expected a name that ends in \.gguf/],
  [['model', 'x.gguf', { type: 'Q3_K' }], /saveGguf type: expected F32, F16, Q8_0, Q4_K_M/],
  [['model', 'x.gguf', { type: 'constructor' }], /saveGguf type/],
  [['model', 'x.gguf', { tokenizer: 5 }], /saveGguf tokenizer: expected a string/],
  [['model', 'x.gguf', { kind: 'F16' }], /kind/],
])('wrong arguments are refused: %j', async (given, message) => {
  const [first, ...rest] = given as unknown[];
  const model = first === 'model' ? await changed('qwen3') : first;
  const error = await refusal(() => Reflect.apply(nn.saveGguf, null, [model, ...rest]));
  expect([error.code, error.message]).toEqual(['DS_ARGUMENT', expect.stringMatching(message)]);
});

test('the name of a missing file is no name on the hub', async () => {
  const error = await refusal(() => nn.models.fromPretrained('missing.gguf'));
  expect([error.code, error.got]).toEqual(['DS_CHECKPOINT', 'nothing of this name']);
});

test('a folder that cannot be written is an error that names it', async () => {
  const error = await refusal(async () =>
    nn.saveGguf(await changed('qwen3'), '/proc/model.gguf', { type: 'F32' }),
  );
  expect(error.code).toBe('DS_IO');
  expect(error.op).toMatch(/^open \/proc\/\.model\.gguf\./);
});

test.each(Object.keys(FAMILIES))('%s is read back', async (name) => {
  const model = await changed(name);
  const expected = logitsOf(model);
  const types = [
    ['F32', 1e-6],
    ['F16', 2e-3],
    ['Q8_0', 0.05],
    ['Q4_K_M', 0.6],
  ] as const;
  for (const [type, most] of types) {
    const path = join(folder, `${name}-${type}.gguf`);
    await nn.saveGguf(model, path, { type });
    const back = await read(path);
    const same = name === 'mistral' ? 'Llama' : model.constructor.name;
    expect(back.constructor.name).toBe(same);
    expect(difference(expected, logitsOf(back))).toBeLessThanOrEqual(most);
  }
});
