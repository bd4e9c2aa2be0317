// Llama 4: attention within chunks in every path, experts with scaled inputs, and keys of folders.
import { cpSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { WeightFiles, writeAlone } from '../../lib/checkpoint/index.js';
import { initInference, nn } from '../../lib/index.js';
import { chunkOf } from '../../lib/nn/chunked-attention.js';
import { noGrad, Tensor } from '../../lib/tensor/index.js';
import type { JsonObject } from '../../types/json.js';
import { folderOf } from './family-rows.js';

const { Llama4, fromConfig, fromPretrained } = nn.models;

const CHUNK = 6;
const SIZES = {
  vocabSize: 41,
  maxSeq: 64,
  layers: 3,
  heads: 4,
  kvHeads: 2,
  channels: 12,
  hidden: 16,
  headDim: 4,
  ropeLayers: [true, false, true],
  attentionChunk: CHUNK,
  queryScale: { floor: 5, factor: 0.4 },
  moe: { experts: 4, perToken: 1, hidden: 8, sharedHidden: 8, normalize: false, denseLayers: [0] },
  initializerRange: 0.3,
};

const rowOf = (values: readonly number[]): Tensor =>
  Tensor.from(Int32Array.from(values), { shape: [1, values.length] });

function logitsOf(
  model: nn.models.CausalLM,
  values: readonly number[],
  inputs: nn.models.CausalInputs = {},
): number[][] {
  const tokens = rowOf(values);
  const logits = noGrad(() => model.call(tokens, null, inputs).contiguous());
  const [rows] = logits.toList() as number[][][];
  for (const tensor of [tokens, logits]) tensor.dispose();
  return rows as number[][];
}

const free = (model: nn.models.CausalLM): void => {
  for (const parameter of model.parameters()) parameter.dispose();
};

const TEXT = Array.from({ length: 20 }, (_, i) => 3 + ((i * 17) % 38));

test('generation beyond several chunks equals full forwards, in a cache and in an engine', async () => {
  const model = new Llama4(SIZES);
  const prompt = TEXT.slice(0, 10);
  const expected = [...prompt];
  for (let i = 0; i < 16; ++i) {
    const last = logitsOf(model, expected).at(-1) as number[];
    expected.push(last.indexOf(Math.max(...last)));
  }
  expect(model.generate(prompt, { maxNewTokens: 16, temperature: 0 })).toEqual(expected);
  // Prompts in parts of four tokens end within a chunk and at its end.
  const engine = await initInference(model, { device: 'cpu', max_ragged_batch_size: 4 });
  const greedy = { temperature: 0, ignoreEos: true, maxNewTokens: 16 } as const;
  const [text] = await engine.generate({ prompt, ...greedy });
  expect([...prompt, ...(text?.tokens ?? [])]).toEqual(expected);
  await engine.destroy();
});

test('a layer with chunks ignores tokens of earlier chunks, and sees its own', () => {
  const model = new Llama4({ ...SIZES, ropeLayers: [true, true, true] });
  const [other, near] = [TEXT.with(CHUNK - 1, 40), TEXT.with(CHUNK, 40)];
  const after = (values: number[]): number[][] => logitsOf(model, values).slice(CHUNK + 1);
  expect(after(other)).toEqual(after(TEXT));
  expect(after(near)[0]).not.toEqual(after(TEXT)[0]);
  free(model);
});

test('a sparse pattern counts blocks from the first token, in a cache too', () => {
  // Chunks begin within blocks of 16 tokens.
  const model = new Llama4({ ...SIZES, attentionChunk: 24 });
  const text = Array.from({ length: 45 }, (_, i) => 3 + ((i * 17) % 38));
  const dense = logitsOf(model, text);
  const pattern = { mode: 'local_sliding_window', numSlidingWindowBlocks: 1 } as const;
  nn.sparsify(model, { ...pattern, differentLayoutPerHead: true });
  const expected = logitsOf(model, text);
  expect(expected[44]).not.toEqual(dense[44]);
  for (const before of [0, 20, 30, 44]) {
    const caches = model.caches(1, 45);
    const found = noGrad(() => {
      if (before > 0) model.next(rowOf(text.slice(0, before)), caches);
      return model.next(rowOf(text.slice(before)), caches).toArray() as number[];
    });
    for (const [i, value] of found.entries()) expect(value).toBeCloseTo(expected[44]?.[i] ?? 0, 5);
  }
  free(model);
});

test('layers that rotate do not scale their queries, with and without norms of heads', () => {
  for (const qkNorm of [true, false]) {
    const sizes = { ...SIZES, qkNorm, ropeLayers: [true, true, true] };
    const [model, plain] = [new Llama4(sizes), new Llama4({ ...sizes, queryScale: null })];
    plain.loadStateDict(model.stateDict());
    expect(logitsOf(plain, TEXT)).toEqual(logitsOf(model, TEXT));
    for (const one of [model, plain]) free(one);
  }
});

test('packed documents have chunks of their own', () => {
  const model = new Llama4(SIZES);
  const lengths = [9, 4, 7];
  const numbers = lengths.flatMap((length, i) => Array<number>(length).fill(i));
  const packed = logitsOf(model, TEXT, { documents: rowOf(numbers) });
  let from = 0;
  for (const length of lengths) {
    const alone = logitsOf(model, TEXT.slice(from, from + length)).flat();
    const found = packed.slice(from, from + length).flat();
    for (const [i, value] of found.entries()) expect(value).toBeCloseTo(alone[i] as number, 5);
    from += length;
  }
  free(model);
});

test('given positions decide the chunk, in documents too', () => {
  const model = new Llama4(SIZES);
  const few = TEXT.slice(0, 4);
  const positions = rowOf([CHUNK - 2, CHUNK - 1, CHUNK, CHUNK + 1]);
  const documents = rowOf([0, 0, 0, 0]);
  const alone = logitsOf(model, few, { positions });
  expect(logitsOf(model, few, { positions, documents })).toEqual(alone);
  expect(logitsOf(model, few, { documents })[2]).not.toEqual(alone[2]);
  free(model);
});

test('one expert for each token, with weights in either layout', () => {
  const plain = new nn.Experts(3, 4, 5);
  const turned = new nn.Experts(3, 4, 5, { inputsFirst: true });
  for (const name of ['gate_up_proj', 'down_proj'] as const) {
    noGrad(() => turned[name].copy_(plain[name].transpose(1, 2).contiguous()));
  }
  const x = Tensor.from(
    Float32Array.from({ length: 24 }, (_, i) => Math.sin(i)),
    { shape: [6, 4] },
  );
  const ids = Tensor.from(Int32Array.from([2, 0, 1, 1, 0, 2]), { shape: [6, 1] });
  const factors = Float32Array.from([0.5, 1, 0.25, 2, 0.1, 0.7]);
  const weights = Tensor.from(factors, { shape: [6, 1] });
  const unit = Tensor.from(new Float32Array(6).fill(1), { shape: [6, 1] });
  const router = { call: () => ({ ids, weights, scalesInputs: true }) };
  const scaled = { call: () => ({ ids, weights: unit }) };
  const expected = plain.call(x.mul(weights), scaled).toArray();
  for (const experts of [plain, turned]) {
    const found = experts.call(x, router).toArray();
    for (const [i, value] of found.entries()) expect(value).toBeCloseTo(expected[i] as number, 6);
  }
});

describe('folders', () => {
  let home: string;
  beforeAll(() => {
    home = mkdtempSync(join(tmpdir(), 'ds-llama4-'));
  });
  afterAll(() => rmSync(home, { recursive: true, force: true }));

  const keys = (): JsonObject =>
    JSON.parse(readFileSync(join(folderOf('llama4'), 'config.json'), 'utf8')) as JsonObject;

  test('a multimodal folder opens as its text model', async () => {
    const files = await WeightFiles.open(join(folderOf('llama4'), 'model.safetensors'));
    const sources = [...files.tensors].map(([name, { dtype, shape }]) => ({
      name: `language_model.${name}`,
      dtype,
      shape,
      values: () => files.read(name),
    }));
    const values = async () => Tensor.from(Float32Array.of(1, 2)).keep();
    for (const name of ['vision_model.class_embedding', 'multi_modal_projector.linear_1.weight']) {
      sources.push({ name, dtype: 'f32', shape: [2], values });
    }
    cpSync(folderOf('llama4'), home, { recursive: true });
    await writeAlone(join(home, 'model.safetensors'), sources);
    await files.close();
    const config = { model_type: 'llama4', text_config: keys(), vision_config: {} };
    writeFileSync(join(home, 'config.json'), JSON.stringify(config));
    const [model, plain] = [await fromPretrained(home), await fromPretrained(folderOf('llama4'))];
    expect(model).toBeInstanceOf(Llama4);
    expect(logitsOf(model, TEXT)).toEqual(logitsOf(plain, TEXT));
    for (const one of [model, plain]) free(one);
  });

  test('keys of published folders', () => {
    const { moe_layers: _, layer_types: __, ...rest } = keys();
    const scout = { ...rest, no_rope_layers: [], attn_temperature_tuning: 4 };
    const { config } = fromConfig(scout) as nn.models.Llama4;
    expect(config).toMatchObject({
      ropeLayers: [true, false],
      attentionChunk: 18,
      queryScale: { floor: 18, factor: 0.4 },
      moe: { denseLayers: [0] },
    });
    const maverick = { ...scout, attn_temperature_tuning: false, attention_chunk_size: null };
    const model = fromConfig({ ...maverick, use_qk_norm: false }) as nn.models.Llama4;
    expect(model.config).toMatchObject({ queryScale: null, attentionChunk: null, qkNorm: false });
  });

  test.each<[JsonObject, RegExp]>([
    [{ layer_types: ['full_attention', 'full_attention'] }, /layer_types: expected "chunked_/],
    [{ moe_layers: [2] }, /moe_layers: expected a list of numbers of 2 layers, got \[2\]/],
    [{ attention_chunk_size: 0 }, /attention_chunk_size: expected a positive integer, got 0/],
    [{ attn_temperature_tuning: 'on' }, /attn_temperature_tuning: expected true or false/],
  ])('%j is refused', (changes, message) => {
    expect(() => fromConfig({ ...keys(), ...changes })).toThrow(message);
  });
});

test.each<[object, RegExp]>([
  [{ attentionChunk: 0 }, /Llama4 attentionChunk: expected/],
  [{ queryScale: { floor: 0, factor: 1 } }, /Llama4 queryScale floor: expected/],
  [{ queryScale: { floor: 4, factor: -1 } }, /Llama4 queryScale factor: expected/],
])('%j is refused', (changes, message) => {
  expect(() => new Llama4({ ...SIZES, ...changes })).toThrow(message);
});

test.each([1, 3, 1000, 8191, 8192])('positions have their chunk of %d tokens', (chunk) => {
  const last = Math.floor(4e7 / chunk) * chunk;
  const places = [0, 1, chunk - 1, chunk, chunk + 1, 10_485_759, 16_777_217, last, last - 1];
  const got = chunkOf(Tensor.from(Int32Array.from(places), { shape: [places.length] }), chunk);
  expect([...got.toArray()]).toEqual(places.map((place) => Math.floor(place / chunk)));
});
