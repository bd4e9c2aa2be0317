// Single parts of the server: histograms, sampling defaults, and requests at their limits.
import { createHash } from 'node:crypto';
import { ApiError } from '../../lib/serve/api-error.js';
import { CHAT_SAMPLING } from '../../lib/serve/chat-options.js';
import { embeddings, rerank } from '../../lib/serve/embeddings.js';
import { Histogram } from '../../lib/serve/histogram.js';
import { type InferenceServer, serve } from '../../lib/serve/index.js';
import { describePooled, poolMetrics, statesOf } from '../../lib/serve/pool-routes.js';
import { samplingDefaults } from '../../lib/serve/sampling-defaults.js';
import type { JsonObject } from '../../types/json.js';
import { ask, withServer } from './client.js';
import { FakeEngine, tokenizer } from './fake-engine.js';

test('a histogram bucket includes its upper bound', () => {
  const histogram = new Histogram([1, 2, 5]);
  expect(histogram.lines('x')).toEqual([
    'x_bucket{le="1"} 0',
    'x_bucket{le="2"} 0',
    'x_bucket{le="5"} 0',
    'x_bucket{le="+Inf"} 0',
    'x_sum 0',
    'x_count 0',
  ]);
  histogram.observe(1);
  histogram.observe(1.5, 2);
  histogram.observe(5);
  histogram.observe(6);
  expect(histogram.lines('x')).toEqual([
    'x_bucket{le="1"} 1',
    'x_bucket{le="2"} 3',
    'x_bucket{le="5"} 4',
    'x_bucket{le="+Inf"} 5',
    'x_sum 15',
    'x_count 5',
  ]);
});

test.each<[object | null, object]>([
  [null, { temperature: 1 }],
  [{ generation: null }, { temperature: 1 }],
  [{ generation: { temperature: 0, top_k: 0 } }, { temperature: 0, topK: 0 }],
  [{ generation: { temperature: -0.1, top_k: -1 } }, { temperature: 1 }],
  [{ generation: { top_p: 1, min_p: 0 } }, { temperature: 1, topP: 1, minP: 0 }],
  [{ generation: { top_p: 0, min_p: 1.1 } }, { temperature: 1 }],
  [{ generation: { min_p: 1 } }, { temperature: 1, minP: 1 }],
  [{ generation: { top_p: 1.01, min_p: -0.1 } }, { temperature: 1 }],
  [{ generation: { repetition_penalty: 0.01 } }, { temperature: 1, repetitionPenalty: 0.01 }],
  [{ generation: { repetition_penalty: 0 } }, { temperature: 1 }],
  [{ generation: { max_new_tokens: 1 } }, { temperature: 1, maxNewTokens: 1 }],
  [{ generation: { max_new_tokens: 0, top_k: 1.5 } }, { temperature: 1 }],
  [{ generation: { temperature: 0.7, do_sample: false } }, { temperature: 0 }],
  [{ generation: { temperature: 0.7, do_sample: true } }, { temperature: 0.7 }],
  [{ generation: { temperature: '0.7' } }, { temperature: 1 }],
])('%j: %j', (description, defaults) => {
  expect(samplingDefaults(description)).toEqual(defaults);
});

test.each([-1, 65_536, 1.5, '80', null, Number.NaN])('port %p is refused', async (port) => {
  const engine = new FakeEngine(tokenizer, 64);
  await expect(serve(engine, { port: port as number })).rejects.toThrow(
    /serve port: expected a port, 0 to 65535/,
  );
});

describe('a request at its limits', () => {
  const engine = new FakeEngine(tokenizer, 64);
  let server: InferenceServer;
  beforeAll(async () => {
    server = await serve(engine, { port: 0, limits: { requests: 1 } });
  });
  afterAll(() => server.kill());

  const post = (fields: object, headers: Record<string, string> = {}) =>
    ask(`${server.url}/v1/completions`, {
      body: { prompt: 'a', max_tokens: 1, ...fields },
      headers,
    });
  /** Tokens below 1007; more of them are named a second time, as "00". */
  const nameOf = (i: number): string => (i < 1000 ? String(i) : `0${i - 1000}`);
  const biases = (count: number) =>
    Object.fromEntries(Array.from({ length: count }, (_, i) => [nameOf(i), 1]));

  test.each<[object, number]>([
    [{ top_k: -1 }, 200],
    [{ top_k: 0 }, 200],
    [{ top_k: -2 }, 400],
    [{ logit_bias: { 5: -100 } }, 200],
    [{ logit_bias: { 5: 100 } }, 200],
    [{ logit_bias: { 5: -100.5 } }, 400],
    [{ logit_bias: { 1006: 0 } }, 200],
    [{ stop_token_ids: [0, 1006] }, 200],
    [{ stop_token_ids: null }, 200],
    [{ stop_token_ids: [] }, 200],
    [{ stop_token_ids: 5 }, 400],
    [{ stop_token_ids: [-1] }, 400],
    [{ temperature: 2 }, 200],
    [{ min_p: 1 }, 200],
    [{ presence_penalty: -2 }, 200],
    [{ frequency_penalty: 2 }, 200],
    [{ seed: -5 }, 200],
  ])('%j: %d', async (fields, status) => {
    expect((await post(fields)).status).toBe(status);
  });

  test('limits the tokens of logit_bias', async () => {
    expect((await post({ logit_bias: biases(1024) })).status).toBe(200);
    const { status, json } = await post({ logit_bias: biases(1025) });
    expect([status, json.error.message]).toEqual([400, expect.stringContaining('at most 1024')]);
  });

  test('a request above the limit is refused, and accepted a second later', async () => {
    let release: () => void = () => {};
    const gate = new Promise<void>((resolve) => {
      release = resolve;
    });
    const { pace } = engine;
    engine.pace = () => gate;
    const first = post({});
    while (engine.active === 0) await new Promise((resolve) => setTimeout(resolve, 1));
    const answer = await fetch(`${server.url}/v1/completions`, {
      method: 'POST',
      headers: { 'content-type': 'application/json' },
      body: JSON.stringify({ prompt: 'a', max_tokens: 1 }),
      signal: AbortSignal.timeout(60_000),
    });
    expect([answer.status, answer.headers.get('retry-after')]).toEqual([429, '1']);
    expect(await answer.json()).toMatchObject({ error: { code: 'queue_full' } });
    release();
    engine.pace = pace;
    expect((await first).status).toBe(200);
    expect((await post({})).status).toBe(200);
  });

  test('metrics name the used part of the cache', async () => {
    jest.spyOn(engine, 'stats').mockReturnValue({
      ...engine.stats(),
      blocksUsed: 3,
      blocks: 12,
    });
    const text = await (await fetch(`${server.url}/metrics`)).text();
    expect(text).toMatch(/^ds_cache_usage_ratio 0\.25$/m);
    jest.restoreAllMocks();
  });

  test('a body without a Content-Type is refused', async () => {
    const body = new Uint8Array([0x7b, 0x7d]);
    const answer = await fetch(`${server.url}/v1/completions`, { method: 'POST', body });
    expect(answer.status).toBe(415);
    const { error } = (await answer.json()) as { error: { message: string } };
    expect(error.message).toMatch(/expected application\/json, got none/);
  });
});

describe('several models', () => {
  const loaded = {
    name: 'a',
    state: 'loaded',
    reason: null,
    served: { maxTokens: 8 },
    bytes: 5,
    loads: 2,
    failures: 1,
    waiting: 3,
  };
  const failed = {
    name: 'b',
    state: 'failed',
    reason: 'no folder',
    served: null,
    bytes: 7,
    loads: 0,
    failures: 4,
    waiting: 0,
  };
  const pool = { models: [loaded, failed] } as never;

  test('are entries with their state, and the reason of a failure', () => {
    const common = {
      object: 'model',
      created: 9,
      owned_by: 'ds',
      parent: null,
    };
    expect(describePooled(loaded as never, 9)).toStrictEqual({
      ...common,
      id: 'a',
      root: 'a',
      max_model_len: 8,
      status: { value: 'loaded' },
    });
    expect(describePooled(failed as never, 9)).toStrictEqual({
      ...common,
      id: 'b',
      root: 'b',
      max_model_len: null,
      status: { value: 'failed', reason: 'no folder' },
    });
    expect(statesOf(pool)).toEqual({ a: 'loaded', b: 'failed' });
  });

  test('have counters by name', () => {
    const lines = poolMetrics(pool)
      .join('')
      .split('\n')
      .filter((line) => line.includes('{'));
    expect(lines).toEqual(
      [
        ['loaded', 1, 0],
        ['bytes', 5, 7],
        ['requests_waiting', 3, 0],
        ['loads_total', 2, 0],
        ['load_failures_total', 1, 4],
      ].flatMap(([name, a, b]) => [
        `ds_model_${name}{model="a"} ${a}`,
        `ds_model_${name}{model="b"} ${b}`,
      ]),
    );
  });
});

describe('encoders', () => {
  const queueClient = {
    client: 'a',
    connection: {},
    signal: new AbortController().signal,
  };
  function servedBy(task: string, more: object = {}) {
    const asked: unknown[] = [];
    const encoder = {
      task,
      width: 2,
      embed: async (rows: readonly unknown[]) => rows.map(() => Float32Array.of(3, 4)),
      async rank(query: string, documents: readonly string[]) {
        asked.push(query, documents);
        return {
          scores: documents.map((_, i) => [0.2, 0.9, 0.5][i]),
          tokens: 11,
        };
      },
    };
    const reader = { encode: async (text: string) => [text.length] };
    const common = {
      name: 'm',
      engine: { encoder },
      reader,
      vocabSize: 9,
      maxPromptTokens: 4,
    };
    const served = { ...common, maxTokens: 4, limits: {}, ...more } as never;
    return { served, asked };
  }
  const rankDocuments = (body: JsonObject, more?: object) =>
    rerank(
      { query: 'q', documents: ['a', { text: 'b' }, 'c'], ...body },
      servedBy('ranking', more).served,
    );

  test('rank documents, the best first', async () => {
    const results = [
      { index: 1, document: { text: 'b' }, relevance_score: 0.9 },
      { index: 2, document: { text: 'c' }, relevance_score: 0.5 },
      { index: 0, document: { text: 'a' }, relevance_score: 0.2 },
    ];
    expect(await rankDocuments({ user: 'me' })).toEqual({
      id: expect.stringMatching(/^rerank-[0-9a-f]{32}$/),
      model: 'm',
      results,
      usage: { prompt_tokens: 11, total_tokens: 11 },
    });
    expect(await rankDocuments({ top_n: 0 })).toMatchObject({ results });
    expect((await rankDocuments({ top_n: 2 })).results).toEqual(results.slice(0, 2));
    const without = (await rankDocuments({ return_documents: false, top_n: 1 })).results;
    expect(without).toStrictEqual([{ index: 1, relevance_score: 0.9 }]);
  });

  test('take texts of 16 characters a token, and 65,536 more', async () => {
    const limit = 16 * 4 + 65_536;
    await rankDocuments({ documents: ['a'.repeat(limit - 1)] });
    const long = { documents: ['x', 'a'.repeat(limit)] };
    await expect(rankDocuments(long)).rejects.toMatchObject({
      param: 'documents',
      message: expect.stringContaining(`at most ${limit} characters`),
    });
    await expect(
      rankDocuments({ documents: ['abc'] }, { limits: { promptCharacters: 3 } }),
    ).rejects.toMatchObject({ param: 'documents' });
    await rankDocuments({ documents: ['ab'] }, { limits: { promptCharacters: 3 } });
  });

  test.each<[body: JsonObject, param: string, words: RegExp]>([
    [{ query: '' }, 'query', /a string/],
    [{ documents: [] }, 'documents', /1 to 2048 strings, got 0/],
    [{ documents: 'a' }, 'documents', /got "a"/],
    [{ documents: ['a', { text: 3 }] }, 'documents[1]', /"text"/],
    [{ top_n: -1 }, 'top_n', /top_n/],
    [{ odd: 1 }, 'odd', /unknown parameter/],
    [{ model: 'other' }, 'model', /expected "m", got "other"/],
  ])('refuse to rank %j', async (body, param, words) => {
    await expect(rankDocuments(body)).rejects.toMatchObject({
      param,
      message: expect.stringMatching(words),
    });
  });

  test('embed texts and tokens, cut to a width and scaled', async () => {
    const { served } = servedBy('embedding');
    const of = async (body: JsonObject) => (await embeddings(body, served, queueClient)).data;
    expect(await of({ input: ['ab', 'c'] })).toEqual([
      { object: 'embedding', index: 0, embedding: [3, 4] },
      { object: 'embedding', index: 1, embedding: [3, 4] },
    ]);
    expect(await of({ input: 'ab', dimensions: 1 })).toMatchObject([{ embedding: [1] }]);
    expect(await of({ input: [1, 8], encoding_format: 'base64' })).toMatchObject([
      {
        embedding: Buffer.from(Float32Array.of(3, 4).buffer).toString('base64'),
      },
    ]);
    const { usage } = await embeddings({ input: [[1, 2], [3]] }, served, queueClient);
    expect(usage).toEqual({ prompt_tokens: 3, total_tokens: 3 });
  });

  test.each<[body: JsonObject, param: string, words: RegExp]>([
    [{ input: [] }, 'input', /1 to 2048 strings, got 0/],
    [{ input: '' }, 'input', /a string, or a list of tokens below 9, got ""/],
    [{ input: ['a', ''] }, 'input[1]', /got ""/],
    [{ input: [9] }, 'input', /tokens below 9/],
    [{ input: [[1], [9]] }, 'input[1]', /tokens below 9/],
    [{ input: [[]] }, 'input[0]', /tokens below 9/],
    [{ input: [1, 2, 3, 4, 5] }, 'input', /at most 4 tokens, got 5/],
    [{ input: 'a', dimensions: 3 }, 'dimensions', /dimensions/],
    [{ input: 'a', encoding_format: 'hex' }, 'encoding_format', /"float" or "base64"/],
    [{ input: 'a', odd: 1 }, 'odd', /unknown parameter/],
  ])('refuse to embed %j', async (body, param, words) => {
    const { served } = servedBy('embedding');
    await expect(embeddings(body, served, queueClient)).rejects.toMatchObject({
      param,
      message: expect.stringMatching(words),
    });
  });

  test('name the model that a route needs', async () => {
    const wrong = { input: 'a', query: 'a', documents: ['a'] };
    const { served } = servedBy('ranking');
    await expect(embeddings(wrong, served, queueClient)).rejects.toThrow(
      /needs an embedding model;/,
    );
    const { served: other } = servedBy('embedding');
    await expect(rerank(wrong, other)).rejects.toThrow(/needs a ranking model with one label/);
  });
});

describe('routes', () => {
  test('name the start of a path, and the methods that it has', () =>
    withServer(async (url) => {
      const long = `/${'x'.repeat(70)}`;
      const unknown = await ask(url + long);
      expect([unknown.status, unknown.json.error.message]).toEqual([
        404,
        expect.stringMatching(
          /^path: got \/x{59}, which this server does not have\. Paths: \/health, /,
        ),
      ]);
      for (const [path, meant] of [
        ['/chat/completions', '/v1/chat/completions'],
        ['/v1/v1/messages', '/v1/messages'],
        ['/v1/models/../', undefined],
        ['/v1/completions/', '/v1/completions'],
      ]) {
        const { status, json } = await ask(url + path);
        expect([path, status]).toEqual([path, 404]);
        if (meant) expect(json.error.message).toContain(`Did you mean ${meant}? Correct the base`);
        else expect(json.error.message).not.toContain('Did you mean');
      }
      for (const [path, advice] of [
        ['/', '--ui'],
        ['/v1/', 'This is the base URL'],
        ['/readyz', 'Did you mean /health?'],
        ['/api/tags', 'set your client to "OpenAI compatible"'],
        ['/props', 'set your client to "OpenAI compatible"'],
      ]) {
        expect((await ask(url + path)).json.error.message).toContain(advice);
      }
      expect((await ask(`${url}/v1/models/`)).json.data).toHaveLength(1);
      const wrong = await ask(`${url}/v1/responses/${'y'.repeat(70)}`, {
        method: 'PUT',
      });
      expect(wrong.json.error.message).toBe(
        `/v1/responses/${'y'.repeat(46)}: expected GET, DELETE, got PUT.`,
      );
      expect([wrong.status, wrong.headers.allow]).toEqual([405, 'GET, DELETE']);
    }));

  test('of requests are logged without their texts', async () => {
    const lines: string[] = [];
    const print = jest.spyOn(console, 'log').mockImplementation((line) => void lines.push(line));
    const headers = { authorization: 'Bearer one' };
    try {
      await withServer(
        async (url, engine) => {
          await ask(`${url}/health`);
          const body = { prompt: 'secret words', max_tokens: 2 };
          await ask(`${url}/v1/completions`, { body, headers });
          await ask(`${url}/v1/completions`, { body: { ...body, odd: 1 }, headers });
          await ask(`${url}/v1/models`);
          engine.failAt = { place: 1, error: new ApiError(503, 'gone', { code: 'slow_reader' }) };
          await ask(`${url}/v1/completions`, { body: { ...body, stream: true }, headers });
          engine.failAt = null;
        },
        { logRequests: true, apiKeys: ['one'], model: 'tiny' },
      );
    } finally {
      print.mockRestore();
    }
    const records = lines.map((line) => JSON.parse(line));
    const [first, , refused] = records;
    const client = createHash('sha256').update('one').digest('hex').slice(0, 8);
    expect(Object.keys(first).join()).toBe(
      'time,status,seconds,method,path,client,model,prompt_tokens,cached_tokens,completion_tokens',
    );
    expect(first).toMatchObject({ status: 200, client, model: 'tiny', completion_tokens: 2 });
    expect(records.map(({ status, error }) => [status, error])).toEqual([
      [200, undefined],
      [400, 'unknown_parameter'],
      [401, 'missing_api_key'],
      [200, 'slow_reader'],
    ]);
    expect(refused).not.toHaveProperty('client');
    expect(lines.join()).not.toMatch(/secret|one"/);
  });

  test('answer that the server is stopping', () =>
    withServer(async (url, _, server) => {
      server.isStopping = true;
      const stopping = { status: 503, json: { error: { code: 'stopping' } } };
      for (const path of ['/v1/models', '/v1/models/default', '/tokenizer_info']) {
        expect(await ask(url + path)).toMatchObject(stopping);
      }
      const body = { prompt: 'a' };
      expect(await ask(`${url}/v1/completions`, { body })).toMatchObject(stopping);
      expect(await ask(`${url}/health`)).toMatchObject({
        status: 503,
        json: { status: 'stopping' },
      });
      expect((await ask(`${url}/metrics`)).status).toBe(200);
      server.isStopping = false;
    }));

  test('need at least one thread that reads prompts', () =>
    expect(serve(new FakeEngine(tokenizer), { port: 0, tokenizerThreads: 0 })).rejects.toThrow(
      /serve tokenizerThreads: expected .*1/,
    ));
});

test('only numbers of sampling are arguments of a chat', () => {
  const { seed, maxNewTokens, ...others } = CHAT_SAMPLING;
  expect([seed?.flag, maxNewTokens?.flag]).toEqual(['--seed <n>', '--max-tokens <n>']);
  const names = Object.keys(others);
  expect(names).toEqual(expect.arrayContaining(['temperature', 'topP', 'topK']));
  for (const name of ['stop', 'doSample', 'logitBias', 'ignoreEos'])
    expect(names).not.toContain(name);
  for (const { syntax, flag } of Object.values(others)) {
    expect(['number', 'integer']).toContain(syntax);
    expect(flag).toMatch(/^--[a-z-]+ <n>$/);
  }
});

test('a prompt has at least one token', () =>
  withServer(async (url) => {
    for (const [prompt, param] of [
      [[[]], 'prompt[0]'],
      [[[5], []], 'prompt[1]'],
      [[], 'prompt'],
    ]) {
      const { status, json } = await ask(`${url}/v1/completions`, { body: { prompt } });
      expect([status, json.error.param]).toEqual([400, param]);
    }
  }));
