// Answers of the server: OpenAI's objects, whole and as events, and their extra fields.
import { isUtf8 } from 'node:buffer';
import { join } from 'node:path';

import { packageRoot } from '../../lib/runtime/package-root.js';
import { type ContinuationRequest, type ServedPiece, serve } from '../../lib/serve/index.js';
import { Tokenizer } from '../../lib/text/index.js';
import { ask, eventsOf, withServer } from './client.js';
import { FakeEngine, textOf, tokenizer } from './fake-engine.js';

const HELLO = Array.from(tokenizer.encode('Hello'));
const MESSAGES = [{ role: 'user', content: 'Hello' }];
const CHAT = Array.from(
  tokenizer.applyChatTemplate(MESSAGES, { addGenerationPrompt: true }).ids,
) as number[];

test('a text completion has the fields of OpenAI', () =>
  withServer(async (url, engine) => {
    const body = { model: 'default', prompt: 'Hello', max_tokens: 5, n: 2 };
    const { status, json } = await ask(`${url}/v1/completions`, { body });
    expect(status).toBe(200);
    expect(json).toEqual({
      id: expect.stringMatching(/^cmpl-[0-9a-f]{32}$/),
      object: 'text_completion',
      created: expect.any(Number),
      model: 'default',
      choices: [0, 1].map((index) => ({
        index,
        text: textOf(HELLO, index, 5),
        logprobs: null,
        finish_reason: 'length',
      })),
      usage: {
        prompt_tokens: HELLO.length,
        completion_tokens: 10,
        total_tokens: HELLO.length + 10,
        prompt_tokens_details: { cached_tokens: Math.min(2, HELLO.length) },
      },
    });
    expect(engine.requests[0]).toMatchObject({ prompt: HELLO, n: 2, maxNewTokens: 5 });
  }));

test('several prompts, as texts and as tokens, are choices side by side', () =>
  withServer(async (url) => {
    const prompts = [[5, 6], [7]];
    const ids = { prompt: prompts, max_tokens: 3, n: 2, return_token_ids: true };
    const { json } = await ask(`${url}/v1/completions`, { body: ids });
    expect(json.choices.map(({ index }: { index: number }) => index)).toEqual([0, 1, 2, 3]);
    for (const [i, { text, token_ids }] of json.choices.entries()) {
      expect(text).toBe(textOf(prompts[i >> 1] as number[], i & 1, 3));
      expect(token_ids).toHaveLength(3);
    }
    expect(json.usage).toMatchObject({ prompt_tokens: 3, completion_tokens: 12 });
    const texts = { prompt: ['Hello', 'Hello'], max_tokens: 1, echo: true };
    const echoed = await ask(`${url}/v1/completions`, { body: texts });
    expect(echoed.json.choices[1].text).toBe(`Hello${textOf(HELLO, 0, 1)}`);
  }));

/** All choices of a prompt share the first one's cached blocks, as in an engine. */
class SharingEngine extends FakeEngine {
  override async *stream(request: ContinuationRequest): AsyncGenerator<ServedPiece> {
    for await (const piece of super.stream(request)) {
      const cachedTokens = piece.index === 0 ? 1 : request.prompt.length - 1;
      yield { ...piece, cachedTokens };
    }
  }
}

test('cached_tokens counts tokens cached before the request', () =>
  withServer(
    async (url) => {
      const body = { prompt: [5, 6, 7, 8, 9], max_tokens: 2, n: 3 };
      const { json } = await ask(`${url}/v1/completions`, { body });
      expect(json.usage.prompt_tokens_details).toEqual({ cached_tokens: 1 });
    },
    {},
    new SharingEngine(tokenizer),
  ));

test('the parts of a streamed completion add up to the whole', () =>
  withServer(async (url) => {
    const body = { prompt: 'Hello', max_tokens: 40, n: 2, stream: true };
    const { status, headers, text } = await ask(`${url}/v1/completions`, { body });
    expect(status).toBe(200);
    expect(headers['content-type']).toBe('text/event-stream; charset=utf-8');
    const { events, isDone } = eventsOf(text);
    expect(isDone).toBe(true);
    for (const index of [0, 1]) {
      const localItems = events
        .flatMap(({ choices }) => choices)
        .filter((item) => item.index === index);
      expect(localItems.map((item) => item.text).join('')).toBe(textOf(HELLO, index, 40));
      expect(localItems.at(-1).finish_reason).toBe('length');
      expect(localItems.slice(0, -1).every((item) => item.finish_reason === null)).toBe(true);
    }
    expect(new Set(events.map(({ id }) => id)).size).toBe(1);
    expect(events.every((event) => !('usage' in event))).toBe(true);
  }));

test('a chat completion', () =>
  withServer(async (url, engine) => {
    const body = { messages: MESSAGES, max_completion_tokens: 4, temperature: 0 };
    const { json } = await ask(`${url}/v1/chat/completions`, { body });
    expect(json).toMatchObject({ object: 'chat.completion', model: 'default' });
    const content = textOf(CHAT, 0, 4);
    const message = { role: 'assistant', content, refusal: null };
    expect(json.choices).toEqual([{ index: 0, message, logprobs: null, finish_reason: 'length' }]);
    expect(json.usage.prompt_tokens).toBe(CHAT.length);
    expect(engine.requests[0]).toMatchObject({ prompt: CHAT, temperature: 0, maxNewTokens: 4 });
    // A client sends the server's answer back.
    const more = [...MESSAGES, json.choices[0].message, { role: 'user', content: 'More' }];
    const again = await ask(`${url}/v1/chat/completions`, { body: { messages: more } });
    expect(again.status).toBe(200);
    expect(again.json.usage.total_tokens).toBe(4096); // All that the context leaves room for.
  }));

test('a streamed chat: the role first, usage last, [DONE] at the end', () =>
  withServer(async (url) => {
    const options = { stream: true, stream_options: { include_usage: true } };
    const parts = [{ role: 'user', content: [{ type: 'text', text: 'Hello' }] }];
    const body = { messages: parts, max_tokens: 30, ...options };
    const { text } = await ask(`${url}/v1/chat/completions`, { body });
    const { events, isDone } = eventsOf(text);
    expect(isDone).toBe(true);
    const [first, ...rest] = events;
    expect(first.object).toBe('chat.completion.chunk');
    expect(first.choices[0].delta).toEqual({ role: 'assistant', content: '' });
    const last = rest.pop();
    expect(last.choices).toEqual([]);
    expect(last.usage).toMatchObject({ prompt_tokens: CHAT.length, completion_tokens: 30 });
    expect(rest.every(({ usage }) => usage === null)).toBe(true);
    const content = rest.map(({ choices }) => choices[0].delta.content ?? '').join('');
    expect(content).toBe(textOf(CHAT, 0, 30));
    expect(rest.at(-1).choices[0].finish_reason).toBe('length');
  }));

test('logprobs of both formats, with the raw bytes of tokens', () =>
  withServer(async (url) => {
    const chat = { messages: MESSAGES, max_tokens: 2, logprobs: true, top_logprobs: 2 };
    const { json } = await ask(`${url}/v1/chat/completions`, { body: chat });
    const [entry] = json.choices[0].logprobs.content;
    expect(json.choices[0].logprobs.content).toHaveLength(2);
    expect(entry).toMatchObject({ logprob: -0.5, top_logprobs: [{}, { logprob: -1.5 }] });
    for (const { token, bytes } of [entry, ...entry.top_logprobs]) {
      const localBytes = Buffer.from(bytes);
      expect(token).toBe(
        isUtf8(localBytes) ? localBytes.toString() : `bytes:\\x${localBytes.toString('hex')}`,
      );
    }
    const plain = { prompt: [5, 6], max_tokens: 3, logprobs: 1 };
    const { logprobs, text } = (await ask(`${url}/v1/completions`, { body: plain })).json
      .choices[0];
    expect(logprobs.tokens).toHaveLength(3);
    expect(logprobs.tokens.join('')).toBe(text);
    expect(logprobs.token_logprobs).toEqual([-0.5, -0.5, -0.5]);
    expect(Object.values(logprobs.top_logprobs[0])).toEqual([-0.5]);
    expect(logprobs.text_offset).toEqual(
      [0, 1, 2].map((i) => logprobs.tokens.slice(0, i).join('').length),
    );
  }));

/** Samples the given tokens; another token is the likeliest. */
class SayingEngine extends FakeEngine {
  constructor(
    localTokenizer: Tokenizer,
    private readonly sampled: readonly number[],
    private readonly likeliest: number,
  ) {
    super(localTokenizer);
  }

  override async *stream(): AsyncGenerator<ServedPiece> {
    for (const [i, token] of this.sampled.entries()) {
      const logprobs = [{ token, logprob: -2, top: [{ token: this.likeliest, logprob: -0.5 }] }];
      const finishReason = i + 1 === this.sampled.length ? 'stop' : null;
      yield { index: 0, text: '', tokens: [token], cachedTokens: 0, logprobs, finishReason };
    }
  }
}

test('logprobs of a tokenizer that marks spaces: spellings, places and the sampled token', async () => {
  const llama = Tokenizer.fromPretrained(
    join(packageRoot(), 'test/golden/transformers/tokenizers/llama2'),
  );
  const ids = ['▁the', '</s>', '<0xF0>', '<0x9F>', '<0x98>', '<0x80>', '▁model', '<0x20>'];
  const sampled = ids.map((text) => llama.tokenToId(text) as number);
  const likeliest = llama.tokenToId('▁') as number;
  await withServer(
    async (url) => {
      const body = { prompt: [5, 6], logprobs: 1 };
      const { logprobs } = (await ask(`${url}/v1/completions`, { body })).json.choices[0];
      const parts = ['bytes:\\xf0', 'bytes:\\x9f', 'bytes:\\x98', 'bytes:\\x80'];
      expect(logprobs.tokens).toEqual([' the', '</s>', ...parts, ' model', ' ']);
      expect(logprobs.text_offset).toEqual([0, 4, 4, 6, 6, 6, 6, 12]);
      expect(logprobs.top_logprobs[0]).toEqual({ ' ': -0.5, ' the': -2 });
      expect(logprobs.top_logprobs[7]).toEqual({ ' ': -0.5 });
    },
    {},
    new SayingEngine(llama, sampled, likeliest),
  );
});

/** Continues by a token that only the model's head has, which is padded beyond the tokenizer's. */
class PaddedEngine extends FakeEngine {
  override async *stream(request: ContinuationRequest): AsyncGenerator<ServedPiece> {
    for await (const piece of super.stream(request)) {
      const token = 1100;
      const top = [{ token, logprob: -0.5 }, ...(piece.logprobs?.[0]?.top ?? [])];
      const logprobs = [{ token, logprob: -0.5, top }];
      yield { ...piece, text: '', tokens: [token], ...(piece.logprobs && { logprobs }) };
    }
  }
}

test('tokens of a head that is larger than the vocabulary have logprobs, and no text', async () => {
  const engine = new PaddedEngine(tokenizer);
  engine.module.vocabSize = 1200;
  await withServer(
    async (url) => {
      const body = { prompt: [1100, 5], max_tokens: 2, logprobs: 1, echo: false };
      for (const stream of [false, true]) {
        const { status, text } = await ask(`${url}/v1/completions`, { body: { ...body, stream } });
        expect(status).toBe(200);
        expect(text).toContain('"tokens":["token_id:1100"');
        expect(text).toContain('"text_offset":[0');
      }
      const { json } = await ask(`${url}/v1/completions`, { body });
      expect(json.choices[0].logprobs).toMatchObject({
        tokens: ['token_id:1100', 'token_id:1100'],
        top_logprobs: [{ 'token_id:1100': -0.5 }, { 'token_id:1100': -0.5 }],
        text_offset: [0, 0],
      });
      const chat = { messages: MESSAGES, max_tokens: 1, logprobs: true, top_logprobs: 1 };
      const response = await ask(`${url}/v1/chat/completions`, { body: chat });
      const [entry] = response.json.choices[0].logprobs.content;
      expect(entry).toMatchObject({ token: 'token_id:1100', logprob: -0.5, bytes: [] });
      const echoed = { prompt: [40, 1100, 41], max_tokens: 1, echo: true };
      const fullReply = await ask(`${url}/v1/completions`, { body: echoed });
      expect(fullReply.json.choices[0].text).toBe(tokenizer.decode([40, 41]));
    },
    {},
    engine,
  );
});

test('a developer message becomes a system message if the template has no such role', () =>
  withServer(async (url, engine) => {
    const ask1 = async (role: string): Promise<readonly number[]> => {
      const messages = [{ role, content: 'Be brief.' }, ...MESSAGES];
      const { status } = await ask(`${url}/v1/chat/completions`, {
        body: { messages, max_tokens: 1 },
      });
      expect(status).toBe(200);
      return engine.requests.at(-1)?.prompt ?? [];
    };
    const prompt = await ask1('developer');
    expect(tokenizer.decode(prompt)).toContain('Be brief.');
    expect(prompt).toEqual(await ask1('system'));
  }));

test('a chat starts a new message, unless it continues the last one', () =>
  withServer(async (url, engine) => {
    const open = { continue_final_message: true, add_generation_prompt: false };
    const bodies = [{}, { add_generation_prompt: false }, open];
    for (const more of bodies) {
      const body = { messages: MESSAGES, max_tokens: 1, ...more };
      await ask(`${url}/v1/chat/completions`, { body });
    }
    await ask(`${url}/v1/completions`, { body: { prompt: 'Hello', max_tokens: 1 } });
    expect(engine.requests.map((request) => request.beginsText ?? false)).toEqual([
      true,
      true,
      false,
      false,
    ]);
  }));

test('the template writes tools into the prompt, and calls are returned as text', () =>
  withServer(async (url, engine) => {
    const parameters = { type: 'object', properties: { city: { type: 'string' } } };
    const tools = [{ type: 'function', function: { name: 'weather', parameters } }];
    const called = [{ role: 'assistant', content: '{"name": "weather"}' }];
    const prompt = async (fields: object): Promise<readonly number[]> => {
      const messages = [...MESSAGES, ...called];
      const body = { messages, tools, max_tokens: 1, ...fields };
      const { status, json } = await ask(`${url}/v1/chat/completions`, { body });
      expect({ status, error: json.error }).toEqual({ status: 200 });
      return engine.requests.at(-1)?.prompt ?? [];
    };
    const messages = [...MESSAGES, ...called];
    const written = tokenizer.applyChatTemplate(messages, { tools, addGenerationPrompt: true });
    expect(written.text).toContain('"weather"');
    for (const tool_choice of [undefined, 'auto']) {
      expect(await prompt({ tool_choice })).toEqual([...written.ids]);
    }
    const none = tokenizer.applyChatTemplate(messages, { addGenerationPrompt: true });
    expect(await prompt({ tool_choice: 'none' })).toEqual([...none.ids]);
  }));

test('a template with developers gets developer messages', () =>
  withServer(
    async (url, engine) => {
      const messages = [{ role: 'developer', content: 'Hello' }];
      await ask(`${url}/v1/chat/completions`, { body: { messages, max_tokens: 1 } });
      expect(tokenizer.decode(engine.requests[0]?.prompt ?? [])).toBe('a developer: Hello');
    },
    {
      chatTemplate:
        '{% for m in messages %}{% if m.role == "developer" %}a {{ m.role }}: {{ m.content }}{% endif %}{% endfor %}',
    },
  ));

test('a streamed token has the offset of the whole answer, though its text is held back', async () => {
  const engine = new FakeEngine(tokenizer);
  engine.holds = 3;
  await withServer(
    async (url) => {
      const body = { prompt: [5, 6], max_tokens: 8, n: 2, logprobs: 0 };
      const { json } = await ask(`${url}/v1/completions`, { body });
      const streamed = await ask(`${url}/v1/completions`, { body: { ...body, stream: true } });
      const { events } = eventsOf(streamed.text);
      const parts = events.flatMap(({ choices }) => choices);
      for (const { index, text, logprobs } of json.choices) {
        const localItems = parts.filter((part) => part.index === index);
        expect(localItems.map((part) => part.text).join('')).toBe(text);
        const offsets = localItems.flatMap((part) => part.logprobs.text_offset);
        expect(offsets).toEqual(logprobs.text_offset);
      }
    },
    {},
    engine,
  );
});

test('generation_config.json fills options that a request omits', async () => {
  const engine = new FakeEngine(tokenizer);
  engine.generation = { temperature: 0.6, top_k: 20, top_p: 0.95, max_new_tokens: 7 };
  await withServer(
    async (url) => {
      const body = { prompt: 'Hello', top_p: 0.5, top_k: -1, min_p: 0.1, seed: -3, user: 'me' };
      const { json } = await ask(`${url}/v1/completions`, { body });
      expect(json.usage.completion_tokens).toBe(7);
      const asked = { temperature: 0.6, topK: 0, topP: 0.5, minP: 0.1, maxNewTokens: 7 };
      expect(engine.requests[0]).toMatchObject(asked);
      expect(engine.requests[0]?.seed).toBeGreaterThan(0);
    },
    {},
    engine,
  );
  const greedy = new FakeEngine(tokenizer);
  greedy.generation = { do_sample: false };
  await withServer(
    async (url) => {
      await ask(`${url}/v1/completions`, { body: { prompt: 'Hello' } });
      expect(greedy.requests[0]).toMatchObject({ temperature: 0, maxNewTokens: 16 });
    },
    {},
    greedy,
  );
});

test('every parameter reaches the engine', () =>
  withServer(async (url, engine) => {
    const body = {
      prompt: [1],
      presence_penalty: 1,
      frequency_penalty: -1,
      repetition_penalty: 1.5,
      logit_bias: { 5: 100 },
      stop: 'x',
      stop_token_ids: [3],
      ignore_eos: true,
      min_tokens: 2,
      seed: 12,
      cache_salt: 's',
      max_tokens: 2,
    };
    expect((await ask(`${url}/v1/completions`, { body })).status).toBe(200);
    expect(engine.requests[0]).toMatchObject({
      presencePenalty: 1,
      frequencyPenalty: -1,
      repetitionPenalty: 1.5,
      temperature: 1,
      logitBias: { 5: 100 },
      stop: ['x'],
      stopTokens: [3],
      ignoreEos: true,
      minTokens: 2,
      seed: 12,
      cacheSalt: 's',
      maxNewTokens: 2,
    });
  }));

test('/v1/models, /health and /metrics answer', () =>
  withServer(
    async (url) => {
      const { json } = await ask(`${url}/v1/models`);
      const origin = { root: 'tiny/one', parent: null };
      const model = {
        id: 'tiny/one',
        object: 'model',
        owned_by: 'ds',
        ...origin,
        max_model_len: 4096,
      };
      expect(json).toMatchObject({ object: 'list', data: [model] });
      expect((await ask(`${url}/v1/models/tiny%2Fone`)).json).toMatchObject(model);
      expect((await ask(`${url}/v1/models/other`)).status).toBe(404);
      expect((await ask(`${url}/v1/models/%E0%A4%A`)).status).toBe(404);
      expect((await ask(`${url}/health`)).json).toEqual({ status: 'ok' });
      expect((await ask(`${url}/health`, { method: 'HEAD' })).status).toBe(200);
      await ask(`${url}/v1/completions`, { body: { prompt: [1, 2], max_tokens: 3 } });
      const { text, headers } = await ask(`${url}/metrics?now`);
      expect(headers['content-type']).toMatch(/^text\/plain; version=0\.0\.4/);
      const value = (name: string) =>
        Number(new RegExp(`^${name.replace(/[{}+]/g, '\\$&')} (.+)$`, 'm').exec(text)?.[1]);
      expect(value('ds_requests_running')).toBe(0);
      expect(value('ds_cache_usage_ratio')).toBe(0);
      expect(value('ds_prompt_tokens_total')).toBe(2);
      expect(value('ds_generation_tokens_total')).toBe(3);
      expect(value('ds_requests_finished_total{reason="length"}')).toBe(1);
      expect(value('ds_http_responses_total{status="404"}')).toBe(2);
      expect(value('ds_inter_token_seconds_count')).toBe(2);
      for (const name of ['time_to_first_token', 'request', 'queue']) {
        expect(value(`ds_${name}_seconds_count`)).toBe(1);
        expect(value(`ds_${name}_seconds_bucket{le="+Inf"}`)).toBe(1);
      }
      for (const line of text.trimEnd().split('\n')) {
        expect(line).toMatch(/^(# (HELP|TYPE) \w+ .+|\w+(\{\w+="[^"]+"\})? [\d.e+-]+)$/);
      }
    },
    { model: 'tiny/one' },
  ));

test('while a model loads, health reports it, and requests fail without waiting', async () => {
  let arrive: (engine: FakeEngine) => void = () => {};
  const coming = new Promise<FakeEngine>((resolve) => {
    arrive = resolve;
  });
  const server = await serve(coming, { port: 0 });
  const body = { prompt: 'Hello' };
  expect(await ask(`${server.url}/health`)).toMatchObject({
    status: 503,
    json: { status: 'loading' },
  });
  const early = await ask(`${server.url}/v1/completions`, { body });
  expect(early).toMatchObject({ status: 503, json: { error: { code: 'loading' } } });
  expect(early.headers['retry-after']).toBe('1');
  expect((await ask(`${server.url}/metrics`)).status).toBe(200);
  arrive(new FakeEngine(tokenizer));
  await server.ready;
  expect((await ask(`${server.url}/v1/completions`, { body })).status).toBe(200);
  await server.stop();
});

const failure = new Error('no such folder');
const failing: readonly [string, () => Promise<FakeEngine>][] = [
  ['rejects', () => Promise.reject(failure)],
  [
    'throws',
    () => {
      throw failure;
    },
  ],
];

test.each(failing)('an engine that %s leaves a server that can be stopped', async (_, make) => {
  const failed = await serve(make, { port: 0 });
  await expect(failed.ready).rejects.toBe(failure);
  await failed.stop();
});

test('a model without a tokenizer continues tokens', async () => {
  const engine = new FakeEngine(null);
  await withServer(
    async (url) => {
      const body = { prompt: [5, 6], max_tokens: 3, logprobs: 1 };
      const { json } = await ask(`${url}/v1/completions`, { body });
      expect(json.choices[0]).toMatchObject({
        text: '',
        token_ids: [expect.any(Number), 0, 0].map(() => expect.any(Number)),
      });
      expect(json.choices[0].logprobs.tokens[0]).toMatch(/^token_id:\d+$/);
      const streamed = await ask(`${url}/v1/completions`, { body: { ...body, stream: true } });
      const { events } = eventsOf(streamed.text);
      expect(events.flatMap(({ choices }) => choices[0].token_ids)).toHaveLength(3);
      const text = await ask(`${url}/v1/completions`, { body: { prompt: 'Hello' } });
      expect(text).toMatchObject({ status: 400, json: { error: { param: 'prompt' } } });
      expect(text.json.error.message).toMatch(/a list of tokens: .* without tokenizer\.json/);
      const chat = await ask(`${url}/v1/chat/completions`, { body: { messages: MESSAGES } });
      expect(chat).toMatchObject({ status: 400, json: { error: { code: 'no_chat_template' } } });
    },
    {},
    engine,
  );
});
