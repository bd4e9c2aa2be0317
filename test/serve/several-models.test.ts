// `--model`: two tiny models and an encoder behind one server, within a memory budget.
import { cpSync, mkdirSync, mkdtempSync, rmSync, statSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { nn, seed } from '../../lib/index.js';
import { device } from '../../lib/runtime/device.js';
import { packageRoot } from '../../lib/runtime/package-root.js';
import { ModelPool, openPool, type ServeOptions, servePool } from '../../lib/serve/index.js';
import { quiet } from '../support/quiet.js';
import { ask, begin, eventsOf, until } from './client.js';

const dir = mkdtempSync(join(tmpdir(), 'ds-several-'));
const TEMPLATE =
  '{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}{% if add_generation_prompt %}assistant: {% endif %}';
const TOKENIZER = join(packageRoot(), 'examples', 'tokenizer');
const config = { device: 'cpu' } as const;
const folders = { one: join(dir, 'one'), two: join(dir, 'two'), words: join(dir, 'words') };
const chat = (model: string, rest = {}) => ({
  model,
  messages: [{ role: 'user', content: 'Hi' }],
  max_tokens: 8,
  seed: 1,
  ...rest,
});

beforeAll(async () => {
  const sizes = { layers: 1, heads: 2, kvHeads: 1, channels: 32, hidden: 64, maxSeq: 128 };
  for (const [i, name] of (['one', 'two'] as const).entries()) {
    seed(i + 1);
    const model = new nn.models.Llama({ vocabSize: 1007, ...sizes, tied: true });
    await nn.saveWeights(model, folders[name], { format: 'hf' });
    cpSync(TOKENIZER, folders[name], { recursive: true });
  }
  const bert = nn.models.fromConfig(
    {
      model_type: 'bert',
      vocab_size: 1007,
      hidden_size: 32,
      num_hidden_layers: 1,
      num_attention_heads: 2,
      intermediate_size: 64,
      max_position_embeddings: 64,
      type_vocab_size: 2,
      pad_token_id: 0,
    },
    { task: 'embedding' },
  );
  await bert.save(folders.words);
  cpSync(TOKENIZER, folders.words, { recursive: true });
  for (const parameter of bert.parameters()) parameter.dispose();
  mkdirSync(join(dir, 'bad'));
  writeFileSync(join(dir, 'bad', 'config.json'), '{"model_type": "llama"}');
});
afterAll(() => rmSync(dir, { recursive: true }));

/** Runs `body` with a server of a pool, which is empty afterwards. */
async function withPool(
  pool: ModelPool,
  body: (url: string) => Promise<void>,
  options: ServeOptions = {},
): Promise<void> {
  const settings = { chatTemplate: TEMPLATE, port: 0, tokenizerThreads: 1, report: () => {} };
  const server = await servePool(pool, { ...settings, ...options });
  try {
    await body(server.url);
  } finally {
    await server.kill();
  }
  expect(pool.used).toBe(0);
}

/** Room for one model at a time. */
const tight = () => openPool(folders, { config }, { memory: 450_000 });

test('the estimate of a model is the bytes of its weights and of its cache', () => {
  const bytesOf = (name: string) => statSync(join(dir, name, 'model.safetensors')).size;
  const estimates = (kv_cache: object) => {
    const places = { ...folders, file: join(folders.one, 'model.safetensors'), far: 'org/name' };
    const pool = openPool(places, { config: { ...config, kv_cache } });
    return pool.models.map(({ bytes }) => bytes);
  };
  const weights = ['one', 'two', 'words', 'one'].map(bytesOf);
  expect(estimates({})).toEqual([...weights, 0]);
  expect(estimates({ memory: 1000 })).toEqual([...weights.map((size) => size + 1000), 1000]);
});

test('each model answers by its name, and the encoder embeds', () =>
  withPool(openPool(folders, { config }), async (url) => {
    const list = await ask(`${url}/v1/models`);
    expect(list.json.data).toMatchObject([
      { id: 'one', object: 'model', parent: null, max_model_len: null },
      { id: 'two', status: { value: 'unloaded' } },
      { id: 'words', status: { value: 'unloaded' } },
    ]);
    expect((await ask(`${url}/health`)).json).toEqual({
      status: 'ok',
      models: { one: 'unloaded', two: 'unloaded', words: 'unloaded' },
    });
    const [one, two] = await Promise.all(
      ['one', 'two'].map((name) =>
        ask(`${url}/v1/chat/completions`, { body: chat(name, { logprobs: true }) }),
      ),
    );
    expect([one?.json.model, two?.json.model]).toEqual(['one', 'two']);
    const [a, b] = [one, two].map((answer) => answer?.json.choices[0].logprobs.content[0].logprob);
    expect(a).not.toBe(b);
    const body = { model: 'words', input: ['a text'], encoding_format: 'float' };
    const embedded = await ask(`${url}/v1/embeddings`, { body });
    expect(embedded.json.data[0].embedding).toHaveLength(32);
    expect((await ask(`${url}/v1/models/one`)).json).toMatchObject({
      max_model_len: 128,
      status: { value: 'loaded' },
    });
    const { text } = await ask(`${url}/metrics`);
    expect(text).toMatch(/^ds_generation_tokens_total\{model="one"\} \d/m);
    expect(text).toMatch(/^ds_model_loaded\{model="words"\} 1$/m);
    expect(text).toMatch(/^ds_model_loads_total\{model="two"\} 1$/m);
  }));

test('other routes find the model too; a wrong one is 404, the first one is the default', () =>
  withPool(openPool(folders, { config }), async (url) => {
    const tokens = await ask(`${url}/tokenize`, { body: { model: 'two', prompt: 'a text' } });
    expect(tokens.json.max_model_len).toBe(128);
    expect((await ask(`${url}/tokenizer_info?model=two`)).status).toBe(200);
    const wrong = await ask(`${url}/v1/completions`, { body: { model: 'three', prompt: 'a' } });
    expect(wrong).toMatchObject({ status: 404, json: { error: { code: 'model_not_found' } } });
    const first = await ask(`${url}/v1/completions`, { body: { prompt: 'a', max_tokens: 2 } });
    expect(first.json.model).toBe('one');
    const kind = await ask(`${url}/v1/completions`, { body: { model: 'words', prompt: 'a' } });
    expect(kind).toMatchObject({ status: 400, json: { error: { param: 'model' } } });
    const adapter = { lora_name: 'a', lora_path: 'b' };
    expect((await ask(`${url}/v1/load_lora_adapter`, { body: adapter })).status).toBe(403);
  }));

test('answers are equal after unloads and loads, and memory is flat over 20 of them', async () => {
  const cpu = device('cpu');
  const pool = tight();
  await quiet(() => cpu.memory.inUse);
  await withPool(pool, async (url) => {
    const answers = new Map<string, Set<string>>([
      ['one', new Set()],
      ['two', new Set()],
    ]);
    const memory: number[] = [];
    for (let i = 0; i < 20; ++i) {
      const name = i % 2 === 0 ? 'one' : 'two';
      const { json } = await ask(`${url}/v1/chat/completions`, { body: chat(name) });
      answers.get(name)?.add(json.choices[0].message.content);
      memory.push(cpu.memory.inUse);
    }
    expect([...answers.values()].map(({ size }) => size)).toEqual([1, 1]);
    expect(pool.models.map(({ loads }) => loads)).toEqual([10, 10, 0]);
    expect(new Set(memory.slice(2)).size).toBeLessThanOrEqual(2); // One value for each model.
    expect(Math.max(...memory.slice(2))).toBeLessThanOrEqual(Math.max(...memory.slice(0, 2)));
  });
});

test('requests for three models at once in room for one are all answered', () =>
  withPool(tight(), async (url) => {
    const asked = Array.from({ length: 18 }, (_, i) => {
      const model = ['one', 'two', 'words'][i % 3] as string;
      if (model === 'words') return ask(`${url}/v1/embeddings`, { body: { model, input: 'a' } });
      return ask(`${url}/v1/chat/completions`, { body: chat(model, { stream: i % 2 === 0 }) });
    });
    const statuses = (await Promise.all(asked)).map(({ status }) => status);
    expect(statuses).toEqual(statuses.map(() => 200));
  }));

test('a stream keeps its model loaded; a disconnect allows its unload', () =>
  withPool(tight(), async (url) => {
    const body = chat('one', { stream: true, max_tokens: 100 });
    const answer = await begin(`${url}/v1/chat/completions`, { body });
    const other = ask(`${url}/v1/chat/completions`, { body: chat('two') });
    answer.destroy();
    expect((await other).status).toBe(200);
    const fullReply = await ask(`${url}/v1/chat/completions`, {
      body: chat('one', { stream: true }),
    });
    expect(eventsOf(fullReply.text).isDone).toBe(true);
  }));

test('a model that does not load answers 503 with the reason, and others are served', () => {
  const all = { ...folders, bad: join(dir, 'bad') };
  return withPool(openPool(all, { config }), async (url) => {
    for (let i = 0; i < 2; ++i) {
      const { status, json, headers } = await ask(`${url}/v1/completions`, {
        body: { model: 'bad', prompt: 'a' },
      });
      expect({ status, code: json.error.code }).toEqual({ status: 503, code: 'model_load_failed' });
      expect(json.error.message).toMatch(/The model bad did not load: .*expected/);
      expect(headers['x-should-retry']).toBe('false');
    }
    expect((await ask(`${url}/v1/models/bad`)).json.status).toMatchObject({
      value: 'failed',
      reason: expect.stringMatching(/expected/),
    });
    const good = await ask(`${url}/v1/completions`, { body: { model: 'two', prompt: 'a' } });
    expect(good.status).toBe(200);
  });
});

test('requests that wait for a load count in --max-requests', async () => {
  let open = (): void => {};
  const gate = new Promise<void>((resolve) => {
    open = resolve;
  });
  const inner = openPool({ one: folders.one }, { config });
  const pool = new ModelPool({
    one: {
      bytes: 0,
      async open() {
        await gate;
        throw new Error('no model here');
      },
    },
  });
  await inner.close();
  await withPool(
    pool,
    async (url) => {
      const body = { prompt: 'a', max_tokens: 1 };
      const waiting = [1, 2].map(() => ask(`${url}/v1/completions`, { body }));
      await until(() => pool.models[0]?.waiting === 2);
      const third = await ask(`${url}/v1/completions`, { body });
      expect(third).toMatchObject({ status: 429, json: { error: { code: 'queue_full' } } });
      open();
      for (const one of waiting) expect((await one).status).toBe(503);
    },
    { limits: { requests: 2 } },
  );
});
