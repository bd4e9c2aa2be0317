// Tests edges of requests and answers: limits of lists and texts, last events, and closed clients.
import { EventEmitter } from 'node:events';
import { Agent, type ServerResponse } from 'node:http';
import type { Socket } from 'node:net';
import { PassThrough } from 'node:stream';
import { answersIn } from '../../lib/serve/answer.js';
import { TextFormat } from '../../lib/serve/answer-format.js';
import { ApiError, noModel } from '../../lib/serve/api-error.js';
import { BodyBudget } from '../../lib/serve/body-budget.js';
import { readPrompt } from '../../lib/serve/chat-request.js';
import { embeddings } from '../../lib/serve/embeddings.js';
import { EventStream } from '../../lib/serve/event-stream.js';
import { readLimits } from '../../lib/serve/limits.js';
import { readJson } from '../../lib/serve/request-body.js';
import { isWithin, RequestFields } from '../../lib/serve/request-fields.js';
import { RequestLife } from '../../lib/serve/request-life.js';
import { send } from '../../lib/serve/send.js';
import { servedModel } from '../../lib/serve/served-model.js';
import { InferenceServer, serve } from '../../lib/serve/server.js';
import { readTools } from '../../lib/serve/tools.js';
import type { JsonObject } from '../../types/json.js';
import { ask, withServer } from './client.js';
import { FakeEngine, tokenizer } from './fake-engine.js';

const asker = { client: 'a', connection: {}, signal: new AbortController().signal };

test('a request without tools gives the template none', async () => {
  const given: object[] = [];
  const chat = (_: unknown, options: object) => void given.push(options);
  const served = { canChat: true, reader: { knowsTools: true, chat } } as never;
  const tools = [{ type: 'function', function: { name: 'f' } }];
  const messages = [{ role: 'user', content: 'a' }];
  const bodies: JsonObject[] = [{}, { tools: [] }, { tools, tool_choice: 'none' }, { tools }];
  for (const more of bodies) {
    await readPrompt(new RequestFields({ messages, ...more }), served).prompt(asker as never);
  }
  const usual = { addGenerationPrompt: true, continueFinalMessage: false, variables: {} };
  expect(given).toEqual([usual, usual, usual, { ...usual, tools }]);
  expect(given.map((options) => 'tools' in options)).toEqual([false, false, false, true]);
});

test('limits have defaults, and none of them may be 0', () => {
  const { connections, ...limits } = readLimits('serve limits');
  expect(limits).toEqual({
    ...{ promptTokens: Number.MAX_SAFE_INTEGER, answers: 16, prompts: 64, bodyBytes: 4 * 2 ** 20 },
    ...{ promptSeconds: 30, headSeconds: 10, bodySeconds: 60, requestSeconds: 600 },
    ...{ unreadBytes: 2 ** 20, unreadSeconds: 60, requests: 1024, bodiesBytes: 128 * 2 ** 20 },
    drainSeconds: 30,
  });
  expect(connections).toBeLessThanOrEqual(1024);
  for (const name of [...Object.keys(limits), 'connections', 'keyRequests', 'promptCharacters']) {
    expect(readLimits('x', { [name]: 1 })).toHaveProperty(name, 1);
    expect(() => readLimits('serve limits', { [name]: 0 })).toThrow(
      new RegExp(`serve limits ${name}: expected .*1.*, got 0`),
    );
  }
});

test('an answer is sent once, and not to a client that has gone', () => {
  const calls: unknown[] = [];
  const response = (more: object) =>
    ({
      ...{ headersSent: false, destroyed: false, ...more },
      writeHead: (...head: unknown[]) => calls.push(head),
      end: (text: string) => calls.push(text),
    }) as unknown as ServerResponse;
  send(response({ headersSent: true }), 200, 'a', {});
  send(response({ destroyed: true }), 200, 'a', {});
  expect(calls).toEqual([]);
  send(response({}), 201, 'ä', { x: 'y' });
  expect(calls).toEqual([[201, { x: 'y', 'content-length': 2 }], 'ä']);
});

test('values of one level have no levels inside', () => {
  expect([null, 1, 'a', true, undefined].map((value) => isWithin(value, 0))).toEqual(
    Array(5).fill(true),
  );
  expect([isWithin({ a: null }, 1), isWithin([null], 0)]).toEqual([true, false]);
});

test('a model without a tokenizer cannot chat, even with a template', () => {
  const reading = { threads: 1, chatTemplate: '{{ messages }}' } as never;
  const limits = readLimits('x');
  expect(servedModel(new FakeEngine(null), 'm', limits, reading).canChat).toBe(false);
  expect(servedModel(new FakeEngine(tokenizer), 'm', limits, reading).canChat).toBe(true);
});

test('an embedding model without a tokenizer embeds tokens only', async () => {
  const embed = async (rows: readonly unknown[]) => rows.map(() => Float32Array.of(1));
  const engine = { encoder: { task: 'embedding', width: 1, embed } };
  const served = { name: 'm', engine, reader: null, vocabSize: 9, maxPromptTokens: 4 } as never;
  expect(await embeddings({ input: [[1, 2], [3]] }, served, asker)).toMatchObject({
    ...{ data: [{ index: 0 }, { index: 1 }], usage: { prompt_tokens: 3 } },
  });
  await expect(embeddings({ input: ['a'] }, served, asker)).rejects.toMatchObject({
    ...{ param: 'input[0]', message: 'input[0]: expected a list of tokens below 9, got "a".' },
  });
  const long = { input: [1, 2, 3, 4, 5] };
  await expect(embeddings(long, served, asker)).rejects.toMatchObject({ param: 'input' });
});

test('a body that ends early is an error of its request', async () => {
  const request = Object.assign(new PassThrough(), {
    headers: { 'content-type': 'application/json' },
  });
  const reservation = new BodyBudget(100).open();
  const read = readJson(request as never, 100, reservation);
  request.write('{"prompt"');
  request.destroy();
  await expect(read).rejects.toMatchObject({
    ...{ status: 400, message: expect.stringMatching(/ended before/) },
  });
});

test('events wait for their reader to a bound, and end with an error or with [DONE]', () => {
  const sent: string[] = [];
  const response = Object.assign(new EventEmitter(), {
    ...{ destroyed: false, writableEnded: false, writableLength: 0 },
    writeHead: (...head: unknown[]) => sent.push(JSON.stringify(head)),
    write: (text: string) => sent.push(text),
    end() {
      response.writableEnded = true;
    },
  });
  const overflow = jest.fn();
  const open = () => {
    sent.length = 0;
    response.writableEnded = false;
    return new EventStream(response as never, 10, overflow);
  };
  const stream = open();
  expect(sent.splice(0)[0]).toMatch(/^\[200,\{"content-type":"text\/event-stream/);
  stream.send({ a: 1 });
  stream.wait();
  Object.assign(response, { writableLength: 10 });
  stream.wait();
  stream.send({ a: 2 });
  expect(overflow).not.toHaveBeenCalled();
  Object.assign(response, { writableLength: 11 });
  stream.send({ a: 3 });
  expect(overflow).toHaveBeenCalledTimes(1);
  Object.assign(response, { writableLength: 0 });
  stream.fail(new ApiError(500, 'gone'));
  for (const late of [() => stream.send({ a: 4 }), () => stream.wait()]) late();
  const error = { message: 'gone', type: 'server_error', param: null, code: null };
  expect(sent).toEqual([
    ...['data: {"a":1}\n\n', ': waiting\n\n', 'data: {"a":2}\n\n'],
    `data: ${JSON.stringify({ error })}\n\n`,
  ]);
  expect(response.writableEnded).toBe(true);
  open().end();
  expect([sent.at(-1), response.writableEnded]).toEqual(['data: [DONE]\n\n', true]);
  const gone = open();
  sent.length = 0;
  response.destroyed = true;
  gone.send({ a: 5 });
  gone.wait();
  expect(sent).toEqual([]);
});

describe('the last bytes of an answer', () => {
  beforeEach(() => {
    jest.useFakeTimers();
  });
  afterEach(() => jest.useRealTimers());

  const prototype = InferenceServer.prototype as unknown as { limitFinalWrite(one: object): void };
  function limited(more: object = {}) {
    const response = Object.assign(new EventEmitter(), {
      ...{ destroyed: false, writableFinished: false, ...more },
      destroy: jest.fn(),
    });
    prototype.limitFinalWrite.call({ limits: { unreadSeconds: 2 } }, response);
    return response;
  }

  test('have a limit of time', () => {
    const response = limited();
    jest.advanceTimersByTime(1999);
    expect(response.destroy).not.toHaveBeenCalled();
    jest.advanceTimersByTime(1);
    expect(response.destroy).toHaveBeenCalledTimes(1);
  });

  test.each(['finish', 'close'])('have no timer after %s', (event) => {
    const response = limited();
    response.emit(event);
    expect(jest.getTimerCount()).toBe(0);
  });

  test.each([{ destroyed: true }, { writableFinished: true }])('have no timer with %j', (state) => {
    limited(state);
    expect(jest.getTimerCount()).toBe(0);
  });
});

test('a model that is loaded after the end of its server is not watched', async () => {
  let arrive: (engine: FakeEngine) => void = () => {};
  const server = await serve(new Promise<FakeEngine>((resolve) => (arrive = resolve)), { port: 0 });
  await server.stop();
  let looks = 0;
  const engine = Object.defineProperty(new FakeEngine(null), 'failure', {
    get: () => void looks++,
  });
  jest.useFakeTimers();
  arrive(engine);
  await server.ready;
  jest.advanceTimersByTime(1000);
  jest.useRealTimers();
  expect(looks).toBe(0);
});

test('a request may name 128 functions', () => {
  const functions = (count: number): JsonObject[] =>
    Array.from({ length: count }, (_, i) => ({ type: 'function', function: { name: `f${i}` } }));
  const read = (count: number) => readTools(new RequestFields({ tools: functions(count) }), true);
  expect(read(128).tools).toHaveLength(128);
  expect(() => read(129)).toThrow(/tools: expected a list of at most 128 functions/);
});

test('the error of a long model name shows its start', () => {
  expect(noModel('x'.repeat(60), 'm').message).toBe(
    `model: expected "m", got "${'x'.repeat(60)}".`,
  );
  expect(noModel('x'.repeat(61), 'm').message).toBe(
    `model: expected "m", got "${'x'.repeat(60)}".`,
  );
});

test('the last event of a stream has the finish reason, even without text', () => {
  const written: string[] = [];
  const response = {
    ...{ writeHead: () => {}, write: (text: string) => written.push(text), end: () => {} },
    ...{ writableLength: 0, destroyed: false, headersSent: false },
  };
  const answer = answersIn(new TextFormat(tokenizer))({
    response: response as unknown as ServerResponse,
    ...{ delivery: { stream: true, includeUsage: false, tokenIds: false }, choices: 1 },
    ...{ model: 'm', maxUnread: 1024, overflow: () => {} },
  });
  const part = { text: '', tokens: null, logprobs: null, offset: 0 };
  answer.part(0, { ...part, finishReason: null });
  expect(written).toEqual([]);
  answer.part(0, { ...part, finishReason: 'stop' });
  expect(written.join()).toMatch(/"finish_reason":"stop"/);
  answer.end({ promptTokens: 1, completionTokens: 1, cachedTokens: 0 });
});

test('a request ends with its connection, and the error has a code', () => {
  const socket = Object.assign(new EventEmitter(), { remoteAddress: 'a', destroyed: false });
  const response = { req: { socket, headers: {} } } as unknown as ServerResponse;
  const life = new RequestLife(response, 60);
  expect(() => life.requireAlive()).not.toThrow();
  socket.emit('close');
  const { status, body } = life.signal.reason as ApiError;
  expect([status, body.error.code]).toEqual([503, 'disconnected']);
  life.close();
  expect(socket.listenerCount('close')).toBe(0);
});

test.each([
  [{ address: '127.0.0.1', family: 'IPv4', port: 80 }, 'http://127.0.0.1:80'],
  [{ address: '::1', family: 'IPv6', port: 80 }, 'http://[::1]:80'],
])('the address %j is a URL', (address, url) => {
  const { get } = Object.getOwnPropertyDescriptor(InferenceServer.prototype, 'url') ?? {};
  expect(get?.call({ http: { address: () => address } })).toBe(url);
});

test('a refusal keeps the connection, unless the client has no key', () =>
  withServer(
    async (url) => {
      const agent = new Agent({ keepAlive: true, maxSockets: 1 });
      const sockets: Socket[] = [];
      agent.on('free', (socket: Socket) => sockets.push(socket));
      const authorization = 'Bearer key';
      for (const path of ['/v1/none', '/v1/models', '/v1/none']) {
        await ask(url + path, { agent, headers: { authorization } });
        await new Promise((resolve) => setImmediate(resolve));
      }
      expect(sockets).toHaveLength(3);
      expect(new Set(sockets).size).toBe(1);
      const { status, headers } = await ask(`${url}/v1/models`, { agent });
      expect([status, headers.connection]).toEqual([401, 'close']);
      agent.destroy();
    },
    { apiKeys: ['key'] },
  ));
