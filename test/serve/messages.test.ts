// Tests of /v1/messages and /v1/messages/count_tokens: Anthropic's API, without a client library.
import { type InferenceServer, serve } from '../../lib/serve/index.js';
import type { JsonObject, JsonValue } from '../../types/json.js';
import { ask, withServer } from './client.js';
import { FakeEngine, tokenizer } from './fake-engine.js';
import { HERMES, ScriptedEngine } from './scripted-engine.js';

const engine = new ScriptedEngine();
let server: InferenceServer;
let url: string;
beforeAll(async () => {
  const chatTemplate = `${HERMES}{# <think></think> #}`;
  server = await serve(engine, { port: 0, apiKeys: ['one'], chatTemplate, model: 'tiny' });
  url = `${server.url}/v1/messages`;
});
afterAll(() => server.kill());

const headers = { 'x-api-key': 'one', 'anthropic-version': '2023-06-01' };
const user = (content: JsonValue) => ({ role: 'user', content });
const hello = { model: 'tiny', max_tokens: 100, messages: [user('Hello')] };
const send = (more: object = {}) => ask(url, { body: { ...hello, ...more }, headers });
const tool = { name: 'add', description: 'Adds.', input_schema: { type: 'object' } };
const CALL = '<tool_call>{"name": "add", "arguments": {"a": 1}}</tool_call>';

/** Sends a request with "stream", and returns its events. */
// biome-ignore lint/suspicious/noExplicitAny: tests look at any JSON.
async function stream(more: object = {}): Promise<any[]> {
  const { text } = await ask(`${url}?beta=true`, {
    body: { ...hello, ...more, stream: true },
    headers,
  });
  const blocks = text.split('\n\n').filter((block) => block !== '');
  return blocks.map((block) => {
    const [, type, data] = /^event: (.*)\ndata: (.*)$/.exec(block) ?? [];
    const event = JSON.parse(data as string);
    expect(event.type).toBe(type);
    return event;
  });
}

describe('an answer', () => {
  test('is a message with blocks of thinking, text and calls', async () => {
    engine.answers.push(`<think>I add.</think>Now:${CALL}${CALL}`);
    const { status, json } = await send({ tools: [tool] });
    const input = { a: 1 };
    const call = { type: 'tool_use', id: expect.stringMatching(/^call_/), name: 'add', input };
    expect([status, json]).toEqual([
      200,
      {
        id: expect.stringMatching(/^msg_[0-9a-f]{32}$/),
        type: 'message',
        role: 'assistant',
        model: 'tiny',
        content: [
          { type: 'thinking', thinking: 'I add.', signature: '' },
          { type: 'text', text: 'Now:' },
          call,
          call,
        ],
        stop_reason: 'tool_use',
        stop_sequence: null,
        usage: {
          input_tokens: engine.requests.at(-1)?.prompt.length,
          cache_creation_input_tokens: 0,
          cache_read_input_tokens: 0,
          output_tokens: expect.any(Number),
        },
      },
    ]);
    expect(json.content[2].id).not.toBe(json.content[3].id);
  });

  test('in events begins with an empty message, and ends with the reason and the counts', async () => {
    engine.answers.push(`<think>R</think>T${CALL}`);
    const events = await stream({ tools: [tool] });
    const [first] = events;
    const prompt = engine.requests.at(-1)?.prompt.length;
    const begun = { role: 'assistant', content: [], stop_reason: null, model: 'tiny' };
    const usage = { input_tokens: prompt, output_tokens: 0 };
    expect(first).toMatchObject({ type: 'message_start', message: { ...begun, usage } });
    const starts = events.filter(({ type }) => type === 'content_block_start');
    expect(starts.map(({ index, content_block: block }) => [index, block])).toMatchObject([
      [0, { type: 'thinking', thinking: '', signature: '' }],
      [1, { type: 'text', text: '' }],
      [2, { type: 'tool_use', name: 'add', input: {} }],
    ]);
    const deltas = events.filter(({ type }) => type === 'content_block_delta');
    const texts = ['', '', ''];
    for (const { index, delta } of deltas)
      texts[index] += delta.thinking ?? delta.text ?? delta.partial_json ?? delta.signature;
    expect([texts[0], texts[1], JSON.parse(texts[2] ?? '')]).toEqual(['R', 'T', { a: 1 }]);
    expect(new Set(deltas.map(({ delta }) => delta.type))).toEqual(
      new Set(['thinking_delta', 'signature_delta', 'text_delta', 'input_json_delta']),
    );
    // Each block stops before the next one starts.
    const order = events.filter(({ type }) => /block_st/.test(type));
    expect(order.map(({ index }) => index)).toEqual([0, 0, 1, 1, 2, 2]);
    expect(events.slice(-2)).toMatchObject([
      {
        type: 'message_delta',
        delta: { stop_reason: 'tool_use', stop_sequence: null },
        usage: { input_tokens: prompt, output_tokens: expect.any(Number) },
      },
      { type: 'message_stop' },
    ]);
  });

  test('has the reason of its end', async () => {
    const reasonOf = async (text: string, more: object) => {
      engine.answers.push(text);
      const { json } = await send(more);
      return [json.stop_reason, json.stop_sequence, json.content.at(-1)];
    };
    const text = (said: string) => ({ type: 'text', text: said });
    expect(await reasonOf('Hi', {})).toEqual(['end_turn', null, text('Hi')]);
    expect(await reasonOf('', {})).toEqual(['end_turn', null, text('')]);
    const stops = { stop_sequences: ['!', 'END'] };
    expect(await reasonOf('Hi END you', stops)).toEqual(['stop_sequence', 'END', text('Hi ')]);
    expect(await reasonOf('Hi', stops)).toEqual(['end_turn', null, text('Hi')]);
    const [reason, , last] = await reasonOf('a b c d e f', { max_tokens: 2 });
    expect([reason, last.text.length > 0]).toEqual(['max_tokens', true]);
    // A call that is cut off has no input.
    const room = tokenizer.encode(CALL, { addSpecialTokens: false }).length - 7;
    const cut = await reasonOf(CALL, { max_tokens: room, tools: [tool] });
    expect(cut).toMatchObject(['max_tokens', null, { type: 'tool_use', input: {} }]);
    const named = { type: 'tool', name: 'add' };
    const forced = '{"name": "add", "arguments": {}}';
    const [forcedReason] = await reasonOf(forced, { tools: [tool], tool_choice: named });
    expect(forcedReason).toBe('tool_use');
  });

  test('ends where the context ends', async () => {
    await withServer(
      async (address, fake) => {
        const body = { ...hello, max_tokens: 32_000 };
        const { json } = await ask(`${address}/v1/messages`, { body });
        const { prompt = [], maxNewTokens } = fake.requests[0] ?? {};
        expect([json.stop_reason, maxNewTokens]).toEqual([
          'model_context_window_exceeded',
          64 - prompt.length,
        ]);
        expect(json.usage).toMatchObject({
          input_tokens: prompt.length - 2,
          cache_read_input_tokens: 2,
        });
      },
      { chatTemplate: HERMES, model: 'tiny' },
      new FakeEngine(tokenizer, 64),
    );
  });
});

describe('a prompt', () => {
  test('has the system texts, without the line that differs in each request', async () => {
    const billing = 'x-anthropic-billing-header: cc_version=2.1; cch=36ee5;';
    const text = (said: string) => ({
      type: 'text',
      text: said,
      cache_control: { type: 'ephemeral' },
    });
    await send({ system: [text(billing), text('You are short.'), text('Be kind.')] });
    expect(engine.lastPrompt).toContain('system\nYou are short.\nBe kind.');
    expect(engine.lastPrompt).not.toContain('billing');
    await send({ system: 'One line.' });
    expect(engine.lastPrompt).toContain('system\nOne line.');
    await send({ system: [text(billing)] });
    expect(engine.lastPrompt).not.toContain('system');
  });

  test('has thoughts, calls and their results', async () => {
    await send({
      tools: [tool],
      messages: [
        user([{ type: 'text', text: '1 + 2?' }]),
        {
          role: 'assistant',
          content: [
            { type: 'thinking', thinking: 'I add.', signature: 'x' },
            { type: 'redacted_thinking', data: 'x' },
            { type: 'text', text: 'Now:' },
            { type: 'tool_use', id: 'call_1', name: 'add', input: { a: 1 } },
            { type: 'tool_use', id: 'call_2', name: 'add', input: {} },
          ],
        },
        user([
          { type: 'tool_result', tool_use_id: 'call_1', content: 'three' },
          { type: 'tool_result', tool_use_id: 'call_2', content: [{ type: 'text', text: 'four' }] },
          { type: 'tool_result', tool_use_id: 'call_3' },
          { type: 'text', text: 'And?' },
        ]),
        user('Well?'),
      ],
    });
    const { lastPrompt } = engine;
    expect(lastPrompt).toContain('<think>I add.</think>Now:<tool_call>{"name": "add"');
    expect(lastPrompt).toMatch(/response>three<.*response>four<.*response><.*user\nAnd\?\nWell\?/s);
    expect(lastPrompt).toContain('"parameters": {"type": "object"}');
  });

  test('has system messages after the first as texts of the user', async () => {
    const note = { role: 'system', content: [{ type: 'text', text: 'Agents: none.' }] };
    await send({ system: 'Be kind.', messages: [user('Hello'), note, user('Now')] });
    const text = 'user\nHello\n<system>\nAgents: none.\n</system>\nNow<|im_end|>';
    expect(engine.lastPrompt).toContain(text);
    expect(engine.lastPrompt.match(/<\|im_start\|>system/g)).toHaveLength(1);
  });

  test('is continued if the last message is of the assistant', async () => {
    engine.answers.push('ris.');
    const messages = [user('Capital?'), { role: 'assistant', content: 'Pa' }];
    const { json } = await send({ messages });
    expect(engine.lastPrompt).toMatch(/assistant\nPa$/);
    expect(json.content).toEqual([{ type: 'text', text: 'ris.' }]);
  });

  test('follows thinking, the choice of tools and the format', async () => {
    await send({ thinking: { type: 'disabled' } });
    expect(engine.lastPrompt).toMatch(/<think>\n\n<\/think>\n\n$/);
    await send({ thinking: { type: 'enabled', budget_tokens: 1024 } });
    expect(engine.lastPrompt).not.toContain('<think>');
    await send({ tools: [tool], tool_choice: { type: 'none' } });
    expect(engine.lastPrompt).not.toContain('Adds.');
    const any = { type: 'any', disable_parallel_tool_use: true };
    engine.answers.push('{"name": "add", "arguments": {}}');
    await send({ tools: [tool], tool_choice: any });
    expect(engine.requests.at(-1)?.format).toBeDefined();
    const schema = { type: 'object', properties: { a: { type: 'integer' } } };
    const format = { type: 'json_schema', schema };
    for (const more of [{ output_config: { format, effort: 'max' } }, { output_format: format }]) {
      engine.answers.push('{"a": 1}');
      const { json } = await send(more);
      expect(json.content).toEqual([{ type: 'text', text: '{"a": 1}' }]);
      expect(engine.requests.at(-1)?.format).toBeDefined();
    }
  });

  test('is counted', async () => {
    const count = async (body: JsonObject) =>
      (await ask(`${url}/count_tokens`, { body, headers })).json;
    const { messages, model } = hello;
    const { input_tokens: tokens } = await count({ messages, model });
    const { usage } = (await send()).json;
    expect(tokens).toBe(usage.input_tokens);
    const longer = await count({ messages, model, tools: [tool], system: 'Be kind.' });
    expect(longer.input_tokens).toBeGreaterThan(tokens);
    expect(await count({ messages, mode: 'x' })).toMatchObject({ type: 'error' });
    expect(await count({ messages, model: 'x' })).toMatchObject({
      error: { type: 'not_found_error' },
    });
  });
});

describe('an error', () => {
  const image = { type: 'image', source: { type: 'base64', media_type: 'image/png', data: '' } };
  test.each([
    [{ max_tokens: undefined }, /^max_tokens: expected a number of tokens, got nothing/],
    [{ messages: [] }, /^messages: expected a list of messages/],
    [{ messages: ['a'] }, /^messages\[0\]: expected an object with role/],
    [{ messages: [{ role: 'tool', content: '' }] }, /^messages\[0\]\.role: expected "user"/],
    [{ messages: [user(7)] }, /^messages\[0\]\.content: expected a string, or a list of blocks/],
    [{ messages: [user([image])] }, /^messages\[0\]\.content\[0\]\.type is not supported: "image"/],
    [{ messages: [user(['a'])] }, /^messages\[0\]\.content\[0\]: expected a block/],
    [{ messages: [user([{ type: 'tool_result' }])] }, /content\[0\]\.tool_use_id: expected an id/],
    [{ messages: [{ role: 'assistant', content: [{ type: 'tool_use' }] }] }, /\.id: expected/],
    [
      { messages: [{ role: 'assistant', content: [{ type: 'tool_use', id: 'a', name: 'f' }] }] },
      /^messages: expected results after the last calls/,
    ],
    [{ system: 7 }, /^system: expected a string, or a list of text blocks/],
    [{ stop_sequences: [''] }, /^stop_sequences: expected a string/],
    [{ tools: [{ type: 'web_search_20250305', name: 'w' }] }, /^tools\[0\]\.type is not supported/],
    [{ tools: [{ input_schema: {} }] }, /^tools\[0\]\.name: expected a name/],
    [{ tools: [{ name: 'f', input_schema: 7 }] }, /^tools\[0\]\.input_schema: expected a JSON/],
    [{ tool_choice: { type: 'all' } }, /^tool_choice\.type: expected "auto", "any"/],
    [{ tools: [tool], tool_choice: { type: 'tool', name: 'x' } }, /^tool_choice\.name: expected/],
    [{ thinking: { type: 'on' } }, /^thinking\.type: expected "enabled"/],
    [{ output_config: { effort: 'most' } }, /^output_config\.effort: expected none, minimal/],
    [{ output_config: { format: { type: 'json_schema' } } }, /^output_config\.format\.schema: exp/],
    [{ temperature: 9 }, /^temperature: expected a finite number from 0 to 2/],
    [{ n: 2 }, /^"n" is an unknown parameter/],
    [{ mcp_servers: [{}] }, /^"mcp_servers" is an unknown parameter/],
  ] as [object, RegExp][])('of %j names the field', async (more, message) => {
    const { status, json } = await send(more);
    expect([status, json]).toEqual([
      400,
      {
        type: 'error',
        error: { type: 'invalid_request_error', message: expect.stringMatching(message) },
      },
    ]);
  });

  test('has the format of the API on all of its paths', async () => {
    for (const path of [url, `${url}/count_tokens`, `${url}/batches`]) {
      const { status, json } = await ask(path, { body: hello });
      expect([status, json]).toMatchObject([
        401,
        { type: 'error', error: { type: 'authentication_error' } },
      ]);
    }
    const wrong = await ask(url, { body: hello, headers: { 'x-api-key': 'two' } });
    expect(wrong.status).toBe(401);
    const bearer = { authorization: 'Bearer one', 'x-api-key': 'two' };
    expect((await ask(url, { body: hello, headers: bearer })).status).toBe(200);
    const other = await ask(`${server.url}/v1/responses`, { body: {}, headers });
    expect(other.json.error.code).toBeNull();
  });

  test("of a thread makes Anthropic's package send the whole conversation", async () => {
    const { status, json } = await send({ thread: { type: 'create' } });
    const details = { error_code: 'thread_unsupported_request', unsupported: ['thread'] };
    expect([status, json]).toMatchObject([
      400,
      { type: 'error', error: { type: 'invalid_request_error', details } },
    ]);
  });

  test('of a long prompt has the words that agents look for', async () => {
    const { status, json } = await send({ messages: [user('a '.repeat(5000))] });
    expect([status, json.error.message]).toEqual([
      400,
      expect.stringMatching(/^prompt is too long: messages: expected at most 4095 tokens/),
    ]);
  });

  test('after the first event is an event', async () => {
    engine.failAt = { place: 2, error: new Error('gone') };
    engine.answers.push('a b c d e f');
    const report = jest.spyOn(console, 'error').mockImplementation(() => {});
    const events = await stream().finally(() => {
      engine.failAt = null;
    });
    report.mockRestore();
    expect(events.at(-1)).toMatchObject({ type: 'error', error: { type: 'api_error' } });
  });
});

test('a system prompt that the template leaves out is an error of its field', async () => {
  const chatTemplate =
    '{% for m in messages %}{% if m.role == "user" %}{{ m.content }}{% endif %}{% endfor %}';
  await withServer(
    async (address) => {
      const body = { ...hello, system: 'Be kind.' };
      for (const path of ['messages', 'messages/count_tokens']) {
        const { max_tokens: _, ...counted } = body;
        const sent = path === 'messages' ? body : counted;
        const { status, json } = await ask(`${address}/v1/${path}`, { body: sent });
        const message = expect.stringMatching(/^system: expected a message that the chat template/);
        expect([status, json.error.message]).toEqual([400, message]);
      }
      const said = { role: 'assistant', content: 'Lost.' };
      const lost = { ...hello, messages: [user('a'), said, user('b')] };
      const { json } = await ask(`${address}/v1/messages`, { body: lost });
      expect(json.error.message).toMatch(/^messages: expected a message that the chat template/);
      const response = { input: 'a', instructions: 'Be kind.', client_metadata: { a: 'b' } };
      const { json: other } = await ask(`${address}/v1/responses`, { body: response });
      expect(other.error).toMatchObject({
        param: 'instructions',
        message: expect.stringMatching(/^instructions: expected a message that/),
      });
    },
    { chatTemplate, model: 'tiny' },
  );
});

test("the models are listed in the format of Anthropic's clients", async () => {
  const { json } = await ask(`${server.url}/v1/models`, {
    headers: { ...headers, 'anthropic-version': '2023-06-01' },
  });
  const [{ id, type, display_name, created_at }] = json.data;
  expect({ ...json, data: [] }).toEqual({ data: [], has_more: false, first_id: id, last_id: id });
  expect([type, display_name]).toEqual(['model', id]);
  expect(new Date(created_at).getTime()).toBe(1000 * json.data[0].created);
});

test('a stored response belongs to the key of either header', async () => {
  const path = `${server.url}/v1/responses`;
  const { json } = await ask(path, { body: { input: 'x' }, headers });
  const found = await ask(`${path}/${json.id}`, { headers: { authorization: 'Bearer one' } });
  expect([found.status, found.json]).toEqual([200, json]);
});
