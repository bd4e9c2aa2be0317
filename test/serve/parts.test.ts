// Single parts of the server: histograms, sampling defaults, and requests at their limits.
import { Histogram } from '../../lib/serve/histogram.js';
import { type InferenceServer, serve } from '../../lib/serve/index.js';
import { samplingDefaults } from '../../lib/serve/sampling-defaults.js';
import { ask } from './client.js';
import { FakeEngine, tokenizer } from './fake-engine.js';

test('a histogram counts up to each bound, which belongs to its bucket', () => {
  const histogram = new Histogram([1, 2, 5]);
  expect(histogram.lines('x')).toEqual([
    ...['x_bucket{le="1"} 0', 'x_bucket{le="2"} 0', 'x_bucket{le="5"} 0'],
    ...['x_bucket{le="+Inf"} 0', 'x_sum 0', 'x_count 0'],
  ]);
  histogram.observe(1);
  histogram.observe(1.5, 2);
  histogram.observe(5);
  histogram.observe(6);
  expect(histogram.lines('x')).toEqual([
    ...['x_bucket{le="1"} 1', 'x_bucket{le="2"} 3', 'x_bucket{le="5"} 4'],
    ...['x_bucket{le="+Inf"} 5', 'x_sum 15', 'x_count 5'],
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
      ...{ blocksUsed: 3, blocks: 12 },
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
