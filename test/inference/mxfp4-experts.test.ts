// An engine keeps experts of MXFP4 folders in 4 bits: the same tokens as with plain values.
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { WeightFiles } from '../../lib/checkpoint/index.js';
import { writeSafetensors } from '../../lib/checkpoint/safetensors-writer.js';
import { initInference, nn, seed, type Tensor } from '../../lib/index.js';
import { Mxfp4Experts } from '../../lib/nn/mxfp4-experts.js';
import { noGrad, Tensor as Tensors } from '../../lib/tensor/index.js';

const [EXPERTS, CHANNELS, HIDDEN] = [4, 64, 32];
const CONFIG = {
  model_type: 'gpt_oss',
  vocab_size: 96,
  hidden_size: CHANNELS,
  intermediate_size: HIDDEN,
  num_hidden_layers: 2,
  num_attention_heads: 4,
  num_key_value_heads: 2,
  head_dim: 16,
  num_local_experts: EXPERTS,
  num_experts_per_tok: 2,
  max_position_embeddings: 256,
  sliding_window: 8,
  eos_token_id: 95,
};

let home: string;
let dir: string;
beforeAll(async () => {
  home = mkdtempSync(join(tmpdir(), 'ds-mxfp4-experts-'));
  dir = await folder();
});
afterAll(() => rmSync(home, { recursive: true, force: true }));

const bytes = (count: number, from: number, to: number, shape: number[]): Tensor =>
  Tensors.from(
    Uint8Array.from(
      { length: count },
      (_, i) => from + ((i * 2654435761 + (i >> 3)) % (to - from)),
    ),
    { shape, dtype: 'u8' },
  );

/** A folder of random weights with codes and scales of all experts. */
async function folder(): Promise<string> {
  const path = join(home, 'folder');
  seed(5);
  const model = nn.models.fromConfig(CONFIG);
  for (const [name, parameter] of model.namedParameters()) {
    if (name.endsWith('sinks')) parameter.initialize(nn.init.normal(1.5));
    else if (!name.includes('norm')) parameter.initialize(nn.init.normal(0.3));
  }
  await model.save(path);
  const files = await WeightFiles.open(path);
  const kept: { name: string; values: Tensor }[] = [];
  for (const name of files.tensors.keys()) {
    if (/experts\.(gate_up|down)_proj$/.test(name)) {
      const [rows, inputs] = name.includes('gate_up') ? [2 * HIDDEN, CHANNELS] : [CHANNELS, HIDDEN];
      const groups = EXPERTS * rows * (inputs / 32);
      const shape = [EXPERTS, rows, inputs / 32];
      kept.push({ name: `${name}_blocks`, values: bytes(16 * groups, 0, 256, [...shape, 16]) });
      kept.push({ name: `${name}_scales`, values: bytes(groups, 121, 125, shape) });
    } else kept.push({ name, values: await files.read(name) });
  }
  await files.close();
  const sources = kept.map(({ name, values }) => ({
    name,
    values,
    dtype: values.dtype,
    shape: values.shape,
  }));
  await writeSafetensors(join(path, 'model.safetensors'), sources);
  const config = JSON.parse(readFileSync(join(path, 'config.json'), 'utf8'));
  const quantization_config = { quant_method: 'mxfp4' };
  writeFileSync(join(path, 'config.json'), JSON.stringify({ ...config, quantization_config }));
  return path;
}

const expertsOf = (model: nn.models.CausalLM): Mxfp4Experts[] =>
  [...model.modules()].filter((module) => module instanceof Mxfp4Experts);

/** A short prompt, and one of more tokens than read codes. */
const PROMPTS = [[1, 2, 3], Array.from({ length: 50 }, (_, i) => (i * 7 + 1) % 95)];

async function generateTokens(model: nn.models.CausalLM, isTogether: boolean): Promise<number[][]> {
  const engine = await initInference(model, { kv_cache: { blocks: 16 }, max_out_tokens: 128 });
  const request = (prompt: number[]) => ({
    prompt,
    maxNewTokens: 40,
    temperature: 0,
    ignoreEos: true,
  });
  const tokensOf = async (prompt: number[]): Promise<number[]> => {
    const [one] = await engine.generate(request(prompt));
    return [...(one?.tokens ?? [])];
  };
  try {
    if (isTogether) return await Promise.all(PROMPTS.map(tokensOf));
    const alone: number[][] = [];
    for (const prompt of PROMPTS) alone.push(await tokensOf(prompt));
    return alone;
  } finally {
    await engine.destroy();
  }
}

/** A model whose experts have been read as plain values before. */
async function plain(): Promise<nn.models.CausalLM> {
  const model = await nn.models.fromPretrained(dir, { dtype: 'f32' });
  model.to(model.computesIn.device, 'f32');
  return model;
}

test('weights that scale inputs do so in steps of an engine, too', () => {
  const experts = new Mxfp4Experts(new nn.Experts(2, CHANNELS, HIDDEN, { inputsFirst: true }));
  for (const [name, parameter] of experts.namedParameters()) {
    const [from, to] = name.endsWith('scales') ? [121, 125] : [0, 256];
    noGrad(() => parameter.copy_(bytes(parameter.numel, from, to, [...parameter.shape])));
  }
  const x = Tensors.from(
    Float32Array.from({ length: 2 * CHANNELS }, (_, i) => Math.sin(i)),
    { shape: [2, CHANNELS] },
  );
  const ids = Tensors.from(Int32Array.of(1, 0), { shape: [2, 1] });
  const weights = Tensors.from(Float32Array.of(0.25, 3), { shape: [2, 1] });
  const router = { call: () => ({ ids, weights, scalesInputs: true }) };
  const expected = experts.call(x, router).toArray();
  const found = noGrad(() => experts.call(x, router)).toArray();
  for (const [i, value] of found.entries()) expect(value).toBeCloseTo(expected[i] as number, 4);
});

test('tokens equal those of plain weights, for one sequence and for several together', async () => {
  const expected = await generateTokens(await plain(), false);
  for (const isTogether of [false, true]) {
    const model = await nn.models.fromPretrained(dir, { dtype: 'f32' });
    expect(await generateTokens(model, isTogether)).toEqual(expected);
    expect(expertsOf(model)).toHaveLength(2);
  }
  expect(expected[0]).toHaveLength(40);
});

test('a model that was read before keeps its plain values', async () => {
  const model = await plain();
  await generateTokens(model, false);
  expect(expertsOf(model)).toHaveLength(0);
});

test('a saved folder has the same codes, and loads', async () => {
  const model = await nn.models.fromPretrained(dir);
  const engine = await initInference(model, { kv_cache: { blocks: 16 }, max_out_tokens: 128 });
  await engine.destroy();
  const copy = join(home, 'copy');
  await model.save(copy);
  const [first, second] = [await WeightFiles.open(dir), await WeightFiles.open(copy)];
  expect([...second.tensors.keys()].sort()).toEqual([...first.tensors.keys()].sort());
  for (const name of first.tensors.keys()) {
    const [own, other] = [await first.read(name), await second.read(name)];
    expect(other.toArray()).toEqual(own.toArray());
    own.release();
    other.release();
  }
  await Promise.all([first.close(), second.close()]);
  const config = JSON.parse(readFileSync(join(copy, 'config.json'), 'utf8'));
  expect(config.quantization_config.quant_method).toBe('mxfp4');
  const back = await nn.models.fromPretrained(copy, { dtype: 'f32' });
  expect(await generateTokens(back, false)).toEqual(await generateTokens(await plain(), false));
});
