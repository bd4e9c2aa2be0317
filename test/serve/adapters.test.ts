// Tests adapters over HTTP: the model of a request, the list of models, load and unload.
import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { type InferenceEngine, initInference, nn, peft, seed } from '../../lib/index.js';
import { type InferenceServer, serve } from '../../lib/serve/index.js';
import { stir } from '../peft/models.js';
import { ask } from './client.js';

const dir = mkdtempSync(join(tmpdir(), 'ds-serve-adapters-'));
const places = { sql: join(dir, 'sql'), law: join(dir, 'law') };
const headers = { authorization: 'Bearer key' };
const prompt = [3, 1, 4, 1, 5];
let engine: InferenceEngine;
let server: InferenceServer;
let open: InferenceServer;

function tiny(): nn.models.Llama {
  seed(1);
  const sizes = { vocabSize: 64, maxSeq: 64, layers: 2, heads: 4, kvHeads: 2 };
  const model = new nn.models.Llama({ ...sizes, channels: 32, hidden: 48 });
  for (const parameter of model.parameters()) void parameter.buffer;
  return model;
}

beforeAll(async () => {
  for (const [i, place] of Object.values(places).entries()) {
    const model = peft.addLora(tiny(), { r: 2 + i, loraAlpha: 200, targetModules: 'all-linear' });
    stir(model);
    await peft.saveAdapter(model, place);
  }
  const config = { device: 'cpu', max_out_tokens: 32 };
  const options = { adapters: { sql: places.sql }, maxAdapters: 2 };
  engine = await initInference(tiny(), config, options);
  server = await serve(engine, { port: 0, model: 'base', apiKeys: ['key'] });
  open = await serve(engine, { port: 0, model: 'base' });
});
afterAll(async () => {
  await server.kill();
  await open.kill();
  await engine.destroy();
  rmSync(dir, { recursive: true });
});

const post = (path: string, body: object, to = server) =>
  ask(`${to.url}/v1/${path}`, { body, headers });
const complete = (model: string | undefined, more: object = {}) =>
  post('completions', { model, prompt, max_tokens: 6, temperature: 0, ...more });
const tokensOf = ({ json }: Awaited<ReturnType<typeof ask>>) => json.choices[0].token_ids;

test('the model of a request names the base or an adapter', async () => {
  const base = await complete('base');
  const sql = await complete('sql');
  expect([base.json.model, sql.json.model]).toEqual(['base', 'sql']);
  expect(tokensOf(sql)).not.toEqual(tokensOf(base));
  expect(tokensOf(await complete(undefined))).toEqual(tokensOf(base));
  const ask = { prompt, maxNewTokens: 6, temperature: 0, adapter: 'sql' };
  const [alone] = await engine.generate(ask);
  expect(tokensOf(sql)).toEqual([...alone!.tokens]);
  const unknown = await complete('law');
  expect(unknown.status).toBe(404);
  expect(unknown.json.error).toMatchObject({ code: 'model_not_found', param: 'model' });
  expect(unknown.json.error.message).toMatch(/^model: expected "base", "sql", got "law"\. Change /);
});

test('adapters are in the list of models, with their base', async () => {
  const { json } = await ask(`${server.url}/v1/models`, { headers });
  const rows = json.data.map((item: Record<string, unknown>) => [item.id, item.root, item.parent]);
  expect(rows).toEqual([
    ['base', 'base', null],
    ['sql', 'base', 'base'],
  ]);
  const reply = await ask(`${server.url}/v1/models/sql`, { headers });
  expect(reply.json).toMatchObject({
    id: 'sql',
    object: 'model',
    parent: 'base',
    max_model_len: 32,
  });
  expect((await ask(`${server.url}/v1/models/law`, { headers })).status).toBe(404);
});

test('logprobs of an echoed prompt use the adapter', async () => {
  const echo = { echo: true, logprobs: 0, max_tokens: 0 };
  const [base, sql] = await Promise.all(
    ['base', 'sql'].map(async (model) => (await complete(model, echo)).json.choices[0].logprobs),
  );
  expect(sql.token_logprobs).toHaveLength(prompt.length);
  expect(sql.token_logprobs).not.toEqual(base.token_logprobs);
});

test('an adapter is loaded and unloaded with a key', async () => {
  const load = { lora_name: 'law', lora_path: places.law };
  const loaded = await post('load_lora_adapter', load);
  expect([loaded.status, loaded.text]).toEqual([
    200,
    "Success: LoRA adapter 'law' added successfully.",
  ]);
  const law = tokensOf(await complete('law'));
  expect(law).not.toEqual(tokensOf(await complete('sql')));
  const again = await post('load_lora_adapter', load);
  expect(again.status).toBe(400);
  expect(again.json.error.message).toMatch(/lora_name: expected a new name, or "load_inplace"/);
  const other = { ...load, lora_path: places.sql, load_inplace: true };
  expect((await post('load_lora_adapter', other)).status).toBe(200);
  expect(tokensOf(await complete('law'))).toEqual(tokensOf(await complete('sql')));
  const gone = await post('unload_lora_adapter', { lora_name: 'law' });
  expect(gone.text).toBe("Success: LoRA adapter 'law' removed successfully.");
  expect((await complete('law')).status).toBe(404);
});

test.each([
  ['load_lora_adapter', { lora_path: 'x' }, 400, /lora_name: .* string, got nothing/],
  ['load_lora_adapter', { lora_name: '', lora_path: 'x' }, 400, /lora_name: .*, got ""/],
  ['load_lora_adapter', { lora_name: 'x' }, 400, /lora_path: expected a non-empty string/],
  ['load_lora_adapter', { lora_name: 'base', lora_path: 'x' }, 400, /other than the model/],
  ['load_lora_adapter', { lora_name: 'x', lora_path: join(dir, 'none') }, 404, /as PEFT writes/],
  ['load_lora_adapter', { lora_name: 'x', lora_path: 'x', rank: 3 }, 400, /rank/],
  ['unload_lora_adapter', {}, 400, /lora_name: expected a non-empty string/],
  ['unload_lora_adapter', { lora_name: 'x' }, 404, /lora_name: expected "sql", got "x"/],
])('%s with %j is %i', async (path, body, status, message) => {
  const answer = await post(path, body);
  expect(answer.status).toBe(status);
  expect(answer.json.error.message).toMatch(message);
});

test('a server without room for adapters names the option that makes room', async () => {
  const plain = await initInference(tiny(), { device: 'cpu', max_out_tokens: 32 });
  const other = await serve(plain, { port: 0, apiKeys: ['key'] });
  const load = { lora_name: 'law', lora_path: places.law };
  const { status, json } = await post('load_lora_adapter', load, other);
  expect([status, json.error.message]).toEqual([400, expect.stringMatching(/with --max-loras/)]);
  await other.kill();
  await plain.destroy();
});

test('a server without a key changes no adapters', async () => {
  const load = { lora_name: 'law', lora_path: places.law };
  for (const path of ['load_lora_adapter', 'unload_lora_adapter']) {
    const { status, json } = await post(path, load, open);
    expect([status, json.error.code]).toEqual([403, 'key_required']);
  }
  const stranger = await ask(`${server.url}/v1/load_lora_adapter`, { body: load });
  expect(stranger.status).toBe(401);
});
