// Tests loading and unloading of adapters, their part of the prefix cache, and refusals.
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { type InferenceEngine, initInference, nn, peft, seed } from '../../lib/index.js';
import { observeKernels } from '../../lib/runtime/call.js';
import { opNames } from '../../lib/runtime/kernels.generated.js';
import { liveTensors } from '../../lib/tensor/index.js';
import { stir, tinyGpt2 } from '../peft/models.js';
import { quiet } from '../support/quiet.js';
import { refusal } from '../support/refusal.js';

const root = mkdtempSync(join(tmpdir(), 'ds-adapter-life-'));
const config = { device: 'cpu', max_out_tokens: 32, kv_cache: { block_size: 16 } } as const;
const prompt = Array.from({ length: 20 }, (_, i) => (i * 7) % 30);
const ask = { prompt, maxNewTokens: 4, temperature: 0, ignoreEos: true } as const;
const places: Record<string, string> = {};
let engine: InferenceEngine;

/** The same weights at each call; longer sequences than the models of test/peft. */
function tinyLlama(channels = 32): nn.models.Llama {
  seed(1);
  const model = new nn.models.Llama({
    vocabSize: 64,
    maxSeq: 64,
    layers: 2,
    heads: 4,
    kvHeads: 2,
    channels,
    hidden: 48,
  });
  for (const parameter of model.parameters()) void parameter.buffer;
  return model;
}

async function save(
  name: string,
  options: peft.LoraOptions,
  model: nn.models.CausalLM = tinyLlama(),
): Promise<string> {
  peft.addLora(model, { loraAlpha: 100, targetModules: 'all-linear', ...options });
  stir(model);
  const dir = join(root, name);
  await peft.saveAdapter(model, dir);
  return dir;
}

beforeAll(async () => {
  places.one = await save('one', { r: 2 });
  places.two = await save('two', { r: 4, loraAlpha: 300, targetModules: ['v_proj', 'down_proj'] });
  places.large = await save('large', { r: 40 });
  places.gpt2 = await save('gpt2', { r: 2, targetModules: ['c_attn'] }, tinyGpt2());
  places.dora = await save('dora', { r: 2, useDora: true });
  places.bias = await save('bias', { r: 2, bias: 'all' }, tinyGpt2());
  places.whole = await save('whole', { r: 2, modulesToSave: ['norm'] });
  const { one } = places as { one: string };
  engine = await initInference(tinyLlama(), config, { adapters: { one }, maxAdapters: 2 });
});
afterAll(async () => {
  await engine.destroy();
  rmSync(root, { recursive: true });
});

const first = async (request: object) => (await engine.generate({ ...ask, ...request }))[0]!;

test('an adapter is loaded and unloaded between requests', async () => {
  expect(engine.adapters).toEqual(['one']);
  await engine.loadAdapter('two', places.two!);
  expect(engine.adapters).toEqual(['one', 'two']);
  const texts = await Promise.all(
    [{}, { adapter: 'one' }, { adapter: 'two' }].map(async (more) => (await first(more)).tokens),
  );
  expect(new Set(texts.map(String)).size).toBe(3);
  engine.unloadAdapter('two');
  expect(engine.adapters).toEqual(['one']);
  const error = await refusal(() => engine.generate({ ...ask, adapter: 'two' }));
  expect(error.message).toMatch(/name of a loaded adapter \("one"\), got "two"/);
  expect((await first({ adapter: 'one' })).tokens).toEqual(texts[1]);
});

test('adapters share no cached prefixes, even after a second load', async () => {
  const cachedTokens = async (adapter?: string) =>
    (await first({ ...(adapter && { adapter }) })).cachedTokens;
  await cachedTokens();
  expect(await cachedTokens()).toBe(16);
  await engine.loadAdapter('two', places.two!);
  expect(await cachedTokens('two')).toBe(0);
  expect(await cachedTokens('two')).toBe(16);
  engine.unloadAdapter('two');
  await engine.loadAdapter('two', places.one!);
  expect(await cachedTokens('two')).toBe(0);
  engine.unloadAdapter('two');
  expect(await cachedTokens()).toBe(16);
});

test('a request keeps its adapter until it ends; then the slot is free', async () => {
  await engine.loadAdapter('two', places.two!);
  const expected = (await first({ adapter: 'two', maxNewTokens: 8 })).tokens;
  const pieces = engine.stream({ ...ask, adapter: 'two', maxNewTokens: 8 });
  const tokens = [...(await pieces.next()).value.tokens];
  engine.unloadAdapter('two');
  const error = await refusal(() => engine.loadAdapter('three', places.two!));
  expect(error).toMatchObject({ code: 'DS_LIMIT' });
  expect(error.message).toMatch(/at most 2 adapters/);
  for await (const piece of pieces) tokens.push(...piece.tokens);
  expect(tokens).toEqual([...expected]);
  await engine.loadAdapter('three', places.one!);
  expect((await first({ adapter: 'three' })).tokens).toEqual(
    (await first({ adapter: 'one' })).tokens,
  );
  engine.unloadAdapter('three');
});

test('rows without an adapter keep their bits in a batch with adapters', async () => {
  const request = { ...ask, logprobs: 2 };
  const logprobs = async (adapter: string | null) => {
    const others = [1, 2, 3].map((i) => ({
      ...request,
      cacheSalt: `bits ${adapter}`,
      prompt: prompt.map((token) => (token + i) % 30),
      ...(adapter && { adapter }),
    }));
    const settings = { ...request, cacheSalt: `bits ${adapter}` };
    const [adapted] = await engine.generateBatch([settings, ...others]);
    return adapted![0]!.logprobs;
  };
  const alone = await logprobs(null);
  expect(alone).toHaveLength(4);
  expect(await logprobs('one')).toEqual(alone);
});

test('logprobs of a prompt use the adapter', async () => {
  const model = await peft.loadAdapter(tinyLlama(), places.one!);
  peft.merge(model);
  const merged = await initInference(model, config);
  const expected = merged
    .promptLogprobs(prompt)
    .map((promptLogprob) => promptLogprob?.logprob ?? 0);
  await merged.destroy();
  const found = engine
    .promptLogprobs(prompt, 0, 'one')
    .map((promptLogprob) => promptLogprob?.logprob ?? 0);
  for (const [i, value] of found.entries()) expect(value).toBeCloseTo(expected[i]!, 4);
  expect(engine.promptLogprobs(prompt)[5]!.logprob).not.toBeCloseTo(expected[5]!, 2);
});

test.each([
  ['large', /rank 16 at most, got rank 40.*maxAdapterRank/],
  ['gpt2', /linear layers of this model, got transformer\.h\.0\.attn\.c_attn/],
  ['dora', /use_dora: expected false, for one of several adapters/],
  ['bias', /bias: expected "none"/],
  ['whole', /modules_to_save: expected no modules/],
])('the adapter "%s" is refused', async (name, message) => {
  const error = await refusal(() => engine.loadAdapter('new', places[name]!));
  expect(error.message).toMatch(message);
  expect(engine.adapters).toEqual(['one']);
});

test('an adapter of a larger model is refused by its shapes', async () => {
  const file = join(places.one!, 'adapter_config.json');
  const dir = await save('other', { r: 2, targetModules: ['q_proj'] }, tinyLlama(64));
  const error = await refusal(() => engine.loadAdapter('new', dir));
  expect(error).toMatchObject({ code: 'DS_CHECKPOINT' });
  expect(error.message).toMatch(
    /q_proj from \d+ to \d+ values, got an adapter from 64 to 64 values/,
  );
  const text = readFileSync(file, 'utf8');
  writeFileSync(file, text.replace('"r": 2', '"r": 3'));
  const wrong = await refusal(() => engine.loadAdapter('new', places.one!));
  expect(wrong.message).toMatch(/by the rank of adapter_config\.json/);
  writeFileSync(file, text);
});

test.each([
  [{ adapters: 'one' }, /an object of folders by name/],
  [{ adapters: { one: 3 } }, /adapters\.one/],
  [{ adapters: { '': 'x' } }, /names of 1 to 128 characters/],
  [{ maxAdapterRank: 8 }, /the option adapters or maxAdapters as well/],
  [{ maxAdapters: 2, maxAdapterRank: 257 }, /at most 256/],
])('options %j are refused', async (options, message) => {
  const error = await refusal(() => initInference(tinyLlama(), config, options as never));
  expect(error.message).toMatch(message);
});

test('an engine without adapters names the option', async () => {
  const plain = await initInference(tinyLlama(), config);
  const request = await refusal(() => plain.generate({ ...ask, adapter: 'one' }));
  expect(request.message).toMatch(/no adapter: the engine has none.*option adapters/);
  const load = await refusal(() => plain.loadAdapter('one', places.one!));
  expect(load.message).toMatch(/maxAdapters/);
  expect(plain.adapters).toEqual([]);
  await plain.destroy();
});

test('beams take no adapter, and names are not reused', async () => {
  const beams = await refusal(() => engine.generate({ prompt, numBeams: 2, adapter: 'one' }));
  expect(beams.message).toMatch(/no adapter with numBeams/);
  const taken = await refusal(() => engine.loadAdapter('one', places.two!));
  expect(taken.message).toMatch(/a name that no adapter has/);
});

test('destroy() restores the original layers of the model', async () => {
  const model = tinyLlama();
  const modules = [...model.namedModules()];
  await quiet();
  const before = liveTensors();
  const { one, two } = places as { one: string; two: string };
  const other = await initInference(model, config, { adapters: { one, two } });
  await other.generate({ ...ask, adapter: 'two' });
  await other.destroy();
  expect([...model.namedModules()]).toEqual(modules);
  expect(liveTensors() - before).toBeLessThanOrEqual(model.parameters().length + 4);
});

test('adapters lie beside quantized weights', async () => {
  const { one } = places as { one: string };
  const quant = { weight: { num_bits: 8 } } as const;
  const other = await initInference(tinyLlama(), { ...config, quant }, { adapters: { one } });
  const [plain, adapted] = await Promise.all(
    [{}, { adapter: 'one' }].map(async (more) => (await other.generate({ ...ask, ...more }))[0]),
  );
  expect(adapted!.tokens).toEqual((await first({ adapter: 'one' })).tokens);
  expect(plain!.tokens).not.toEqual(adapted!.tokens);
  await other.destroy();
});

test.each([
  { what: 'all layers of an adapter', names: ['one'], kinds: ['AdapterSum'] },
  { what: 'q_proj without k_proj', names: ['query'], kinds: ['AdapterExpand', 'AdapterShrink'] },
  // 1,040 rows of A.
  { what: 'many slots', names: ['one'], max: 65, kinds: ['AdapterExpand', 'AdapterShrink'] },
])('the kernels of $what', async ({ names, max, kinds }) => {
  places.query ??= await save('query', { r: 2, targetModules: ['q_proj'] });
  const adapters = Object.fromEntries(names.map((name) => [name, places[name] as string]));
  const settings = { adapters, ...(max && { maxAdapters: max }) };
  const other = await initInference(tinyLlama(), config, settings);
  const seen = new Set<string>();
  observeKernels((op) => {
    const name = opNames[op] as string;
    if (name.startsWith('Adapter')) seen.add(name);
    return null;
  });
  try {
    await other.generate({ ...ask, adapter: names[0] as string });
  } finally {
    observeKernels(null);
    await other.destroy();
  }
  expect([...seen].sort()).toEqual(kinds);
});

test('an adapter of smaller rank leaves nothing of the one before it in its slot', async () => {
  const { one, large } = places as { one: string; large: string };
  const options = { adapters: { large }, maxAdapterRank: 48 };
  const other = await initInference(tinyLlama(), config, options);
  other.unloadAdapter('large');
  await other.loadAdapter('one', one);
  const [found] = await other.generate({ ...ask, adapter: 'one' });
  expect(found!.tokens).toEqual((await first({ adapter: 'one' })).tokens);
  await other.destroy();
});
