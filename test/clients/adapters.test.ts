// The package of OpenAI with adapters: the model of each request, whole and streamed, at one time.
import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { type InferenceEngine, initInference, nn, peft, seed } from '../../lib/index.js';
import { type InferenceServer, serve } from '../../lib/serve/index.js';
import { stir } from '../peft/models.js';
import { tokenizer } from '../serve/fake-engine.js';
import { HERMES } from '../serve/scripted-engine.js';
import { type Any, all } from './scripted.js';

const { OpenAI } = require('openai') as Any;
const dir = mkdtempSync(join(tmpdir(), 'ds-client-adapters-'));
const names = ['sql', 'law'];
let engine: InferenceEngine;
let server: InferenceServer;
let client: Any;

function tiny(): nn.models.Llama {
  seed(1);
  const sizes = { vocabSize: 1007, maxSeq: 512, layers: 2, heads: 4, kvHeads: 2 };
  const model = new nn.models.Llama({ ...sizes, channels: 32, hidden: 48 });
  for (const parameter of model.parameters()) void parameter.buffer;
  return model;
}

beforeAll(async () => {
  const adapters: Record<string, string> = {};
  for (const [i, name] of names.entries()) {
    const model = peft.addLora(tiny(), { r: 2 + i, loraAlpha: 100, targetModules: 'all-linear' });
    stir(model);
    adapters[name] = join(dir, name);
    await peft.saveAdapter(model, adapters[name]);
  }
  const config = { device: 'cpu', max_out_tokens: 512 };
  engine = await initInference(tiny(), config, { tokenizer, adapters, maxAdapters: 3 });
  const chatTemplate = HERMES;
  server = await serve(engine, { port: 0, model: 'base', apiKeys: ['key'], chatTemplate });
  client = new OpenAI({
    baseURL: `${server.url}/v1`,
    apiKey: 'key',
    maxRetries: 0,
    timeout: 60_000,
  });
});
afterAll(async () => {
  await server.kill();
  await engine.destroy();
  rmSync(dir, { recursive: true });
});

const messages = [{ role: 'user', content: 'Name a table.' }];
const sampling = { temperature: 0, max_tokens: 8 };
const chat = async (model: string): Promise<string> => {
  const answer = await client.chat.completions.create({ model, messages, ...sampling });
  expect(answer.model).toBe(model);
  return answer.choices[0].message.content;
};

test('adapters are models of the client', async () => {
  const models = await all<Any>(client.models.list());
  expect(models.map(({ id, parent }) => [id, parent])).toEqual([
    ['base', null],
    ['sql', 'base'],
    ['law', 'base'],
  ]);
  expect((await client.models.retrieve('law')).parent).toBe('base');
});

test('chats of the base and of adapters at one time equal chats one by one', async () => {
  const expected = ['base', ...names];
  const alone: string[] = [];
  for (const model of expected) alone.push(await chat(model));
  expect(new Set(alone).size).toBe(3);
  const together = await Promise.all([...expected, ...expected].map(chat));
  expect(together).toEqual([...alone, ...alone]);
});

test('a stream and a response name the adapter', async () => {
  const stream = await client.chat.completions.create({
    model: 'sql',
    messages,
    ...sampling,
    stream: true,
  });
  const chunks = await all<Any>(stream);
  expect(new Set(chunks.map(({ model }) => model))).toEqual(new Set(['sql']));
  const text = chunks.map(({ choices }) => choices[0]?.delta.content ?? '').join('');
  expect(text).toBe(await chat('sql'));
  const response = await client.responses.create({
    model: 'law',
    input: 'Name a table.',
    temperature: 0,
    max_output_tokens: 8,
  });
  expect(response.model).toBe('law');
  expect(response.output_text).toBe(await chat('law'));
});

test('an unknown adapter is an error of the client', async () => {
  const call = client.chat.completions.create({ model: 'none', messages });
  await expect(call).rejects.toMatchObject({ status: 404, code: 'model_not_found' });
});

test('the client loads and unloads an adapter over HTTP', async () => {
  const body = { lora_name: 'new', lora_path: join(dir, 'law') };
  expect(await client.post('/load_lora_adapter', { body })).toMatch(/added successfully/);
  expect(await chat('new')).toBe(await chat('law'));
  await client.post('/unload_lora_adapter', { body: { lora_name: 'new' } });
  await expect(chat('new')).rejects.toMatchObject({ status: 404 });
});
