// Tests the answers of /v1/responses without a client library: one object, or events.
import { ApiError } from '../../lib/serve/api-error.js';
import { type InferenceServer, serve } from '../../lib/serve/index.js';
import { ResponseAnswer } from '../../lib/serve/responses/response-answer.js';
import type { JsonObject } from '../../types/json.js';
import { ask, eventsOf } from './client.js';
import { HERMES, ScriptedEngine } from './scripted-engine.js';

describe('an answer', () => {
  afterEach(() => jest.useRealTimers());

  /** A response without a connection. */
  class Sent {
    headersSent = false;
    destroyed = false;
    writableEnded = false;
    writableLength = 0;
    status = 0;
    readonly chunks: string[] = [];
    writeHead(status: number): void {
      this.status = status;
      this.headersSent = true;
    }
    write(text: string): void {
      this.chunks.push(text);
    }
    end(text?: string): void {
      if (text !== undefined) this.chunks.push(text);
      this.writableEnded = true;
    }
    // biome-ignore lint/suspicious/noExplicitAny: tests look at any JSON.
    get events(): any[] {
      const blocks = this.chunks.filter((chunk) => !chunk.startsWith(':'));
      return blocks.map((chunk) => {
        const [, type, data] = /^event: (.*)\ndata: (.*)\n\n$/.exec(chunk) ?? [];
        const event = JSON.parse(data as string);
        expect(event.type).toBe(type);
        return event;
      });
    }
  }

  const echo = { metadata: { a: 'b' }, store: true };
  const head = { id: 'resp_1', created_at: 5, echo, namespaces: new Map() };
  const usage = { promptTokens: 3, completionTokens: 4, cachedTokens: 1, reasoningTokens: 2 };
  const part = (more: object) => ({
    text: '',
    tokens: null,
    logprobs: null,
    finishReason: null,
    offset: 0,
    ...more,
  });

  function open(stream: boolean) {
    const sent = new Sent();
    const kept: [JsonObject, readonly JsonObject[]][] = [];
    const setup = {
      response: sent as never,
      choices: 1,
      model: 'tiny',
      promptTokens: 3,
      maxUnread: 1e6,
      overflow: () => {},
      delivery: { stream, includeUsage: false, tokenIds: false },
    };
    const answer = new ResponseAnswer(setup, head, (...row) => kept.push(row));
    return { answer, sent, kept };
  }

  test('of text, reasoning and calls is a list of items', () => {
    const { answer, sent, kept } = open(false);
    answer.part(0, part({ reasoning: 'I ' }));
    answer.part(0, part({ reasoning: 'add.' }));
    answer.part(0, part({ text: 'Te' }));
    answer.part(1, part({ text: 'of another choice' }));
    answer.part(0, part({ text: 'xt.' }));
    const call = { index: 0, id: 'call_1', name: 'f', arguments: '' };
    answer.part(0, part({ calls: [call, { index: 0, arguments: '{"a":' }] }));
    answer.part(0, part({ calls: [{ index: 0, arguments: '1}' }], finishReason: 'tool_calls' }));
    answer.end(usage);
    const body = JSON.parse(sent.chunks.join(''));
    const id = (prefix: string) => expect.stringMatching(new RegExp(`^${prefix}_[0-9a-f]{32}$`));
    const output = [
      {
        id: id('rs'),
        type: 'reasoning',
        status: 'completed',
        summary: [{ type: 'summary_text', text: 'I add.' }],
      },
      {
        id: id('msg'),
        type: 'message',
        status: 'completed',
        role: 'assistant',
        content: [{ type: 'output_text', text: 'Text.', annotations: [], logprobs: [] }],
      },
      {
        id: id('fc'),
        type: 'function_call',
        status: 'completed',
        call_id: 'call_1',
        name: 'f',
        arguments: '{"a":1}',
      },
    ];
    expect([sent.status, body]).toEqual([
      200,
      {
        id: 'resp_1',
        object: 'response',
        created_at: 5,
        status: 'completed',
        background: false,
        error: null,
        incomplete_details: null,
        metadata: { a: 'b' },
        store: true,
        model: 'tiny',
        output,
        usage: {
          input_tokens: 3,
          input_tokens_details: { cached_tokens: 1 },
          output_tokens: 4,
          output_tokens_details: { reasoning_tokens: 2 },
          total_tokens: 7,
        },
      },
    ]);
    expect(kept).toEqual([[body, body.output]]);
  });

  test('that is cut is incomplete, with its last item', () => {
    const { answer, sent } = open(false);
    answer.part(0, part({ text: 'Te', finishReason: 'length' }));
    answer.end({ promptTokens: 1, completionTokens: 1, cachedTokens: 0 });
    expect(JSON.parse(sent.chunks.join(''))).toMatchObject({
      status: 'incomplete',
      incomplete_details: { reason: 'max_output_tokens' },
      output: [{ type: 'message', status: 'incomplete' }],
      usage: { output_tokens_details: { reasoning_tokens: 0 } },
    });
  });

  test('without text is an empty message', () => {
    const { answer, sent } = open(false);
    answer.part(0, part({ finishReason: 'stop' }));
    answer.end(usage);
    const { output } = JSON.parse(sent.chunks.join(''));
    expect(output).toMatchObject([{ type: 'message', content: [{ text: '' }] }]);
  });

  test('in events begins with the empty response, and ends with the whole', () => {
    const { answer, sent, kept } = open(true);
    answer.part(0, part({ reasoning: 'R' }));
    answer.part(0, part({ text: 'T' }));
    answer.part(0, part({ calls: [{ index: 0, id: 'call_1', name: 'f', arguments: '' }] }));
    answer.part(0, part({ calls: [{ index: 0, arguments: '{}' }] }));
    // No call is open, so these arguments are dropped.
    answer.part(0, part({ text: 'U' }));
    answer.part(0, part({ calls: [{ index: 0, arguments: 'lost' }] }));
    answer.end(usage);
    const { events } = sent;
    expect(sent.writableEnded).toBe(true);
    expect(events.map(({ sequence_number: number }) => number)).toEqual([...events.keys()]);
    const [created, running] = events;
    const begun = { id: 'resp_1', status: 'in_progress', output: [], usage: null, model: 'tiny' };
    expect(created).toMatchObject({ type: 'response.created', response: begun });
    expect(created.response.incomplete_details).toBeNull();
    expect(running).toMatchObject({ type: 'response.in_progress', response: begun });
    const of = (type: string) => events.filter((event) => event.type === `response.${type}`);
    expect(of('output_item.added').map(({ item, output_index: i }) => [i, item])).toMatchObject([
      [0, { type: 'reasoning', status: 'in_progress', summary: [] }],
      [1, { type: 'message', status: 'in_progress', content: [] }],
      [2, { type: 'function_call', status: 'in_progress', arguments: '', call_id: 'call_1' }],
      [3, { type: 'message' }],
    ]);
    const [rs, msg, fc] = of('output_item.added').map(({ item }) => item.id);
    const settings = { item_id: rs, output_index: 0, summary_index: 0 };
    expect(of('reasoning_summary_part.added')).toMatchObject([
      { ...settings, part: { type: 'summary_text', text: '' } },
    ]);
    expect(of('reasoning_summary_text.delta')).toMatchObject([{ ...settings, delta: 'R' }]);
    expect(of('reasoning_summary_text.done')).toMatchObject([{ ...settings, text: 'R' }]);
    expect(of('reasoning_summary_part.done')).toMatchObject([{ ...settings, part: { text: 'R' } }]);
    const text = { item_id: msg, output_index: 1, content_index: 0 };
    expect(of('content_part.added')[0]).toMatchObject({ ...text, part: { type: 'output_text' } });
    expect(of('output_text.delta')[0]).toMatchObject({ ...text, delta: 'T', logprobs: [] });
    expect(of('output_text.done')[0]).toMatchObject({ ...text, text: 'T', logprobs: [] });
    expect(of('content_part.done')[0]).toMatchObject({ ...text, part: { text: 'T' } });
    const called = { item_id: fc, output_index: 2 };
    expect(of('function_call_arguments.delta')).toMatchObject([{ ...called, delta: '{}' }]);
    expect(of('function_call_arguments.done')).toMatchObject([
      { ...called, name: 'f', arguments: '{}' },
    ]);
    const last = events.at(-1);
    expect(last).toMatchObject({ type: 'response.completed', response: { usage: {} } });
    expect(last.response.output).toEqual(of('output_item.done').map(({ item }) => item));
    expect(kept).toHaveLength(1);
  });

  test('that is cut ends its events with response.incomplete', () => {
    const { answer, sent } = open(true);
    answer.part(0, part({ text: 'T', finishReason: 'length' }));
    answer.end(usage);
    expect(sent.events.at(-1).type).toBe('response.incomplete');
  });

  test('that fails is an error of HTTP before the first event, an event after it', () => {
    const error = new ApiError(503, 'gone', { code: 'stopping' });
    for (const stream of [false, true]) {
      const { answer, sent, kept } = open(stream);
      answer.fail(error);
      expect([sent.status, sent.writableEnded, kept]).toEqual([503, true, []]);
      expect(JSON.parse(sent.chunks.join(''))).toEqual(error.body);
    }
    for (const [given, code] of [
      [error, 'stopping'],
      [new ApiError(500, 'gone'), 'server_error'],
    ] as const) {
      const { answer, sent, kept } = open(true);
      answer.part(0, part({ text: 'T' }));
      answer.fail(given);
      expect(sent.events.at(-1)).toMatchObject({
        type: 'response.failed',
        response: { status: 'failed', usage: null, error: { code, message: 'gone' } },
      });
      expect([sent.writableEnded, kept]).toEqual([true, []]);
    }
  });

  test('that does not come sends a comment every 15 s, until it ends', () => {
    jest.useFakeTimers({ doNotFake: ['performance'] });
    const { answer, sent } = open(true);
    jest.advanceTimersByTime(14_999);
    expect(sent.chunks).toEqual([]);
    jest.advanceTimersByTime(1);
    expect(sent.chunks.at(-1)).toBe(': waiting\n\n');
    jest.advanceTimersByTime(10_000);
    answer.part(0, part({ text: 'T' }));
    const { length } = sent.chunks;
    // An event begins the time again.
    jest.advanceTimersByTime(14_999);
    expect(sent.chunks).toHaveLength(length);
    jest.advanceTimersByTime(1);
    expect(sent.chunks).toHaveLength(length + 1);
    answer.end(usage);
    expect(jest.getTimerCount()).toBe(0);
    for (const stream of [false, true]) {
      const { answer: failed } = open(stream);
      failed.fail(new ApiError(500, 'gone'));
      expect(jest.getTimerCount()).toBe(0);
    }
    open(false);
    expect(jest.getTimerCount()).toBe(0);
  });
});

describe('over HTTP', () => {
  const engine = new ScriptedEngine();
  let server: InferenceServer;
  let url: string;
  beforeAll(async () => {
    const chatTemplate = `${HERMES}{# <think></think> #}`;
    server = await serve(engine, { port: 0, apiKeys: ['one', 'two'], chatTemplate });
    url = `${server.url}/v1/responses`;
  });
  afterAll(() => server.kill());

  const withKey = (key = 'one') => ({ headers: { authorization: `Bearer ${key}` } });
  const send = (body: object, key?: string) => ask(url, { body, ...withKey(key) });
  const tool = { type: 'function', name: 'f', parameters: { type: 'object' } };

  test('a response is kept for its key until it is deleted', async () => {
    engine.answers.push('One.');
    const { json } = await send({ input: 'x', instructions: 'Short.' });
    expect(engine.lastPrompt).toContain('system\nShort.');
    const localText = `${url}/${json.id}`;
    expect((await ask(localText, withKey())).json).toEqual(json);
    for (const method of ['GET', 'DELETE']) {
      expect((await ask(localText, { ...withKey('two'), method })).status).toBe(404);
    }
    const deleted = await ask(localText, { ...withKey(), method: 'DELETE' });
    expect([deleted.status, deleted.json]).toEqual([
      200,
      { id: json.id, object: 'response', deleted: true },
    ]);
    expect((await ask(localText, withKey())).status).toBe(404);
    const other = await ask(localText, { ...withKey(), method: 'POST', body: {} });
    expect([other.status, other.headers.allow]).toEqual([405, 'GET, DELETE']);
  });

  test('instructions at the start are one system message', async () => {
    engine.answers.push('x', 'x');
    const said = (role: string, content: string) => ({ role, content });
    const input = [said('developer', 'B'), said('system', 'C'), said('user', 'D')];
    await send({ instructions: 'A', input });
    expect(engine.lastPrompt).toContain('<|im_start|>system\nA\n\nB\n\nC<|im_end|>');
    expect(engine.lastPrompt.match(/<\|im_start\|>system/g)).toHaveLength(1);
    await send({ input: [said('user', 'D'), said('developer', 'B')] });
    expect(engine.lastPrompt).toMatch(/user\nD.*system\nB/s);
  });

  test('functions of a namespace are called by both names', async () => {
    const space = { type: 'namespace', name: 'agents', description: 'd', tools: [tool] };
    engine.answers.push('<tool_call>{"name": "agents__f", "arguments": {}}</tool_call>', 'Done.');
    const { json } = await send({ input: 'x', tools: [tool, space] });
    expect(engine.lastPrompt).toMatch(/"name": "f".*"name": "agents__f"/s);
    const [call] = json.output;
    const own = { type: 'function_call', name: 'f', namespace: 'agents', arguments: '{}' };
    expect(call).toMatchObject(own);
    const result = { type: 'function_call_output', call_id: call.call_id, output: 'ok' };
    const messages = [{ role: 'user', content: 'x' }, call, result];
    await send({ input: messages, tools: [tool, space] });
    expect(engine.lastPrompt).toContain('<tool_call>{"name": "agents__f"');
    for (const [more, param] of [
      [{ name: 7 }, 'tools[0].name'],
      [{ tools: 'f' }, 'tools[0].tools'],
      [{ tools: [{ type: 'custom', name: 'p' }] }, 'tools[0].type'],
    ] as const) {
      const { json: wrong } = await send({ input: 'x', tools: [{ ...space, ...more }] });
      expect(wrong.error.param).toBe(param);
    }
  });

  test('the next turn has the items of the turns before it', async () => {
    engine.answers.push('One.', 'Two.', 'Three.');
    const first = await send({ input: 'a' });
    const second = await send({ input: 'b', previous_response_id: first.json.id });
    expect(second.json.previous_response_id).toBe(first.json.id);
    await send({ input: 'c', previous_response_id: second.json.id });
    expect(engine.lastPrompt).toMatch(/user\na.*\nOne\..*user\nb.*\nTwo\..*user\nc/s);
    // Errors count the items of the request only.
    const wrong = { input: [{ type: 'odd' }], previous_response_id: second.json.id };
    expect((await send(wrong)).json.error.param).toBe('input[0].type');
    const foreign = await send({ input: 'c', previous_response_id: second.json.id }, 'two');
    expect(foreign).toMatchObject({ status: 404, json: { error: { code: 'response_not_found' } } });
  });

  test('fields of the request come back, with defaults', async () => {
    engine.answers.push('x', 'x');
    const defaults = {
      instructions: null,
      max_output_tokens: null,
      metadata: {},
      parallel_tool_calls: true,
      previous_response_id: null,
      reasoning: { effort: null, summary: null },
      store: true,
      temperature: null,
      text: { format: { type: 'text' } },
      tool_choice: 'auto',
      tools: [],
      top_p: null,
      truncation: 'disabled',
      user: null,
    };
    expect((await send({ input: 'x' })).json).toMatchObject(defaults);
    const options = {
      instructions: 'i',
      max_output_tokens: 9,
      metadata: { a: 'b' },
      parallel_tool_calls: false,
      reasoning: { effort: 'low' },
      store: false,
      temperature: 0.5,
      text: { format: { type: 'json_object' } },
      tool_choice: 'none',
      tools: [tool],
      top_p: 0.5,
      truncation: 'disabled',
      user: 'me',
    };
    const { json } = await send({ input: 'x', ...options });
    expect(json).toMatchObject(options);
    expect((await ask(`${url}/${json.id}`, withKey())).status).toBe(404);
    expect(json).toMatchObject({ object: 'response', id: expect.stringMatching(/^resp_\w{32}$/) });
    expect(Math.abs(json.created_at - Date.now() / 1000)).toBeLessThan(600);
  });

  test('tools, choice, format, effort and tokens reach the engine', async () => {
    engine.answers.push('x', 'x', 'x');
    await send({ input: 'x', tools: [tool], max_output_tokens: 9, temperature: 0.5 });
    expect(engine.lastPrompt).toContain('"name": "f"');
    expect(engine.requests.at(-1)).toMatchObject({ maxNewTokens: 9, temperature: 0.5 });
    const choice = { type: 'function', name: 'f' };
    await send({ input: 'x', tools: [tool], tool_choice: choice });
    expect(engine.requests.at(-1)?.format).toBeDefined();
    await send({ input: 'x', reasoning: { effort: 'none' } });
    expect(engine.lastPrompt).toMatch(/<think>\n\n<\/think>\n\n$/);
  });

  test('an answer in events', async () => {
    engine.answers.push('Text.');
    const { text } = await send({ input: 'x', stream: true });
    const blocks = text.split('\n').filter((line) => line.startsWith('data: '));
    const { events } = eventsOf(blocks.join('\n\n'));
    expect(events.at(-1).type).toBe('response.completed');
    expect((await ask(`${url}/${events[0].response.id}`, withKey())).status).toBe(200);
  });

  test.each<[fields: object, param: string, words: RegExp]>([
    [{}, 'input', /a string, or a list of items/],
    [{ input: [] }, 'input', /a string, or a list of items/],
    [{ conversation: 'c' }, 'conversation', /send previous_response_id/],
    [{ prompt: {} }, 'prompt', /no templates of prompts/],
    [{ background: true }, 'background', /waits for the answer/],
    [{ truncation: 'auto' }, 'truncation', /drops no items/],
    [{ top_logprobs: 1 }, 'top_logprobs', /has logprobs/],
    [{ tools: 3 }, 'tools', /a list of functions/],
    [{ tools: [3] }, 'tools[0]', /a tool/],
    [{ tools: [{ type: 'web_search' }] }, 'tools[0].type', /runs no tools.*"web_search"/],
    [{ tools: [{ ...tool, name: '' }] }, 'tools[0].name', /tools\[0\]\.name: expected a name/],
    [{ tools: [tool], tool_choice: { type: 'function' } }, 'tool_choice', /tool_choice/],
    [{ max_output_tokens: 0 }, 'max_output_tokens', /max_output_tokens/],
    [{ max_output_tokens: 1e6 }, 'max_output_tokens', /Lower max_output_tokens/],
    [{ reasoning: { effort: 'odd' } }, 'reasoning.effort', /reasoning\.effort: expected none/],
    [{ text: { format: { type: 'xml' } } }, 'text.format.type', /text\.format\.type/],
    [{ temperature: 5 }, 'temperature', /temperature/],
    [{ odd: 1 }, 'odd', /unknown parameter/],
    [{ input: [{ role: 'robot', content: 'a' }] }, 'input[0].role', /input\[0\]\.role/],
  ])('%j is refused', async (fields, param, words) => {
    const input = 'input' in fields || Object.keys(fields).length === 0 ? {} : { input: 'x' };
    const { status, json } = await send({ ...input, ...fields });
    expect([status, json.error.param]).toEqual([400, param]);
    expect(json.error.message).toMatch(words);
  });

  test.each([
    { background: false },
    { truncation: null },
    { top_logprobs: 0 },
    { include: ['a'], store: null },
  ])('%j is accepted', async (fields) => {
    engine.answers.push('x');
    expect((await send({ input: 'x', ...fields })).status).toBe(200);
  });
});
