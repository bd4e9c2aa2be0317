// Tests edges of requests and answers: limits of lists and texts, last events, and closed clients.
import { EventEmitter } from 'node:events';
import { Agent, type ServerResponse } from 'node:http';
import type { Socket } from 'node:net';
import { PassThrough } from 'node:stream';
import { cpu } from '../../lib/runtime/device.js';
import { openFileLimit } from '../../lib/runtime/host-limits.js';
import { answerOpener } from '../../lib/serve/answer.js';
import { TextFormat } from '../../lib/serve/answer-format.js';
import { ApiError, noModelError } from '../../lib/serve/api-error.js';
import { BodyBudget } from '../../lib/serve/body-budget.js';
import { readPrompt } from '../../lib/serve/chat-request.js';
import { embeddings } from '../../lib/serve/embeddings.js';
import { EncoderEngine } from '../../lib/serve/encoder-engine.js';
import { EventStream } from '../../lib/serve/event-stream.js';
import { leaveRanks } from '../../lib/serve/follow-engine.js';
import { readLimits } from '../../lib/serve/limits.js';
import { readJson } from '../../lib/serve/request-body.js';
import { isWithin, RequestFields } from '../../lib/serve/request-fields.js';
import { RequestLife } from '../../lib/serve/request-life.js';
import { send } from '../../lib/serve/send.js';
import { createServedModel } from '../../lib/serve/served-model.js';
import { InferenceServer, serve } from '../../lib/serve/server.js';
import { readTools } from '../../lib/serve/tools.js';
import { Tensor } from '../../lib/tensor/index.js';
import type { JsonObject } from '../../types/json.js';
import { ask, withServer } from './client.js';
import { FakeEngine, tokenizer } from './fake-engine.js';

const queueClient = { client: 'a', connection: {}, signal: new AbortController().signal };

test('a request without tools gives the template none', async () => {
  const items: object[] = [];
  const chat = (_: unknown, options: object) => void items.push(options);
  const served = { canChat: true, reader: { knowsTools: true, encodeChat: chat } } as never;
  const tools = [{ type: 'function', function: { name: 'f' } }];
  const messages = [{ role: 'user', content: 'a' }];
  const bodies: JsonObject[] = [{}, { tools: [] }, { tools, tool_choice: 'none' }, { tools }];
  for (const more of bodies) {
    await readPrompt(new RequestFields({ messages, ...more }), served).prompt(queueClient as never);
  }
  const usual = { addGenerationPrompt: true, continueFinalMessage: false, variables: {} };
  expect(items).toEqual([usual, usual, usual, { ...usual, tools }]);
  expect(items.map((options) => 'tools' in options)).toEqual([false, false, false, true]);
});

test('limits have defaults, and none of them may be 0', () => {
  const { connections, ...limits } = readLimits('serve limits');
  expect(limits).toEqual({
    promptTokens: Number.MAX_SAFE_INTEGER,
    answers: 16,
    prompts: 64,
    bodyBytes: 4 * 2 ** 20,
    promptSeconds: 30,
    headSeconds: 10,
    bodySeconds: 60,
    requestSeconds: 600,
    unreadBytes: 2 ** 20,
    unreadSeconds: 60,
    requests: 1024,
    bodiesBytes: 128 * 2 ** 20,
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

test('connections may be half of the files that the process may open', () => {
  const half = Math.floor(openFileLimit() / 2);
  expect(readLimits('x', { connections: half }).connections).toBe(half);
  expect(() => readLimits('x', { connections: half + 1 })).toThrow(
    `expected at most ${half}, half`,
  );
  expect(readLimits('x').connections).toBe(Math.min(1024, half));
});

test('leaving ranks has no effect in a process without ranks', async () => {
  await expect(leaveRanks()).resolves.toBeUndefined();
});

describe('an invalid request', () => {
  /** Calls the server's handler; returns the end of the connection. */
  async function endSocket(
    { code = 'HPE_INVALID_METHOD', writable = true }: { code?: string; writable?: boolean },
    { isClosing = false, isAnswering = false, hasEnded = false },
  ) {
    const server = await serve(new FakeEngine(null), { port: 0 });
    const calls: string[] = [];
    const own = server as unknown as Record<string, unknown>;
    const { connections } = own;
    own.connections = {
      isClosing: () => isClosing,
      isAnswering: () => isAnswering,
      hasEnded: () => hasEnded,
      linger: () => calls.push('linger'),
    };
    const socket = {
      writable,
      destroy: () => calls.push('destroy'),
      write: (text: string) => calls.push(text.split('\r\n')[0] as string),
    };
    (own.onClientError as (error: object, socket: object) => void)({ code }, socket);
    own.connections = connections;
    await server.kill();
    return calls;
  }

  test.each([
    ['a new connection', {}, {}, ['HTTP/1.1 400 Bad Request', 'linger']],
    [
      'headers that are too long',
      { code: 'HPE_HEADER_OVERFLOW' },
      {},
      ['HTTP/1.1 431 Request Header Fields Too Large', 'linger'],
    ],
    ['one that is closed already', {}, { isClosing: true }, []],
    ['an answer under way', {}, { isAnswering: true }, ['destroy']],
    ['answers in transfer', {}, { isAnswering: true, hasEnded: true }, ['linger']],
    ['a client that has gone', { code: 'ECONNRESET' }, { hasEnded: true }, ['destroy']],
    ['a closed side', { writable: false }, { isAnswering: true, hasEnded: true }, ['destroy']],
  ])('ends %s', async (_, error, state, calls) => {
    expect(await endSocket(error, state)).toEqual(calls);
  });
});

describe('an encoder', () => {
  /** Outputs of width 2: the number of real tokens, and the sum of a row's types. */
  function encoderOf(task: string) {
    const calls: number[][] = [];
    const model = {
      task,
      maxLength: 8,
      maxSeq: 16,
      vocabSize: 9,
      hiddenSize: 2,
      padTokenId: 0,
      hasTypes: true,
      describe: () => ({}),
      parameters: () => [{ device: cpu() }],
      call: (ids: Tensor, { mask, types }: { mask: Tensor; types: Tensor }) => {
        calls.push([...ids.shape]);
        const [rows = 0, length = 0] = ids.shape;
        const [real, kinds] = [mask, types].map((tensor) => tensor.to('f32').toArray().flat());
        const sums = Array.from({ length: rows }, (__, b) =>
          [real, kinds].map((all) =>
            (all as number[]).slice(b * length, (b + 1) * length).reduce((x, y) => x + y, 0),
          ),
        );
        return Tensor.from(sums.flat(), { shape: [rows, 2], device: cpu() });
      },
    };
    const encodePair = (query: string, document: string) => ({
      ids: Int32Array.from({ length: query.length + document.length }, () => 1),
      types: Int32Array.from([...query, ...document], (__, i) => (i < query.length ? 0 : 1)),
    });
    return { engine: new EncoderEngine(model as never, { encodePair } as never), calls };
  }

  test('gives each row its own output, in batches of similar rows', async () => {
    const { engine, calls } = encoderOf('embedding');
    const rows = [[1], [1, 2, 3], [1, 2]];
    const found = await engine.encoder.embed(rows);
    expect(found.map((values) => [...values])).toEqual([
      [1, 0],
      [3, 0],
      [2, 0],
    ]);
    expect(calls).toEqual([[3, 3]]);
    expect([engine.stats().promptTokens, engine.maxTokens]).toEqual([6, 8]);
    expect([engine.encoder.task, engine.encoder.width]).toEqual(['embedding', 2]);
    const first = engine.stream()[Symbol.asyncIterator]().next();
    await expect(first).rejects.toThrow(/a model that generates, got a model of the task/);
  });

  test('scores documents by the sigmoid of its first output', async () => {
    const { engine } = encoderOf('sequence-classification');
    expect(engine.encoder.task).toBe('ranking');
    const { scores, tokens } = await engine.encoder.rank('ab', ['c', 'defg']);
    const sigmoid = (x: number) => 1 / (1 + Math.exp(-x));
    expect(scores.map((score) => score.toFixed(6))).toEqual(
      [3, 6].map((value) => sigmoid(value).toFixed(6)),
    );
    expect(tokens).toBe(9);
  });
});

test('an answer is sent once, and not to a client that has gone', () => {
  const calls: unknown[] = [];
  const response = (more: object) =>
    ({
      headersSent: false,
      destroyed: false,
      ...more,
      writeHead: (...head: unknown[]) => calls.push(head),
      end: (text: string) => calls.push(text),
    }) as unknown as ServerResponse;
  send(response({ headersSent: true }), 200, 'a', {});
  send(response({ destroyed: true }), 200, 'a', {});
  expect(calls).toEqual([]);
  send(response({}), 201, 'ä', { x: 'y' });
  expect(calls).toEqual([[201, { x: 'y', 'content-length': 2 }], 'ä']);
});

test('the nesting of plain values is 0', () => {
  expect([null, 1, 'a', true, undefined].map((value) => isWithin(value, 0))).toEqual(
    Array(5).fill(true),
  );
  expect([isWithin({ a: null }, 1), isWithin([null], 0)]).toEqual([true, false]);
});

test('a model without a tokenizer cannot chat, even with a template', () => {
  const reading = { threads: 1, chatTemplate: '{{ messages }}' } as never;
  const limits = readLimits('x');
  expect(createServedModel(new FakeEngine(null), 'm', limits, reading).canChat).toBe(false);
  expect(createServedModel(new FakeEngine(tokenizer), 'm', limits, reading).canChat).toBe(true);
});

test('an embedding model without a tokenizer embeds tokens only', async () => {
  const embed = async (rows: readonly unknown[]) => rows.map(() => Float32Array.of(1));
  const engine = { encoder: { task: 'embedding', width: 1, embed } };
  const served = { name: 'm', engine, reader: null, vocabSize: 9, maxPromptTokens: 4 } as never;
  expect(await embeddings({ input: [[1, 2], [3]] }, served, queueClient)).toMatchObject({
    data: [{ index: 0 }, { index: 1 }],
    usage: { prompt_tokens: 3 },
  });
  await expect(embeddings({ input: ['a'] }, served, queueClient)).rejects.toMatchObject({
    param: 'input[0]',
    message: 'input[0]: expected a list of tokens below 9, got "a".',
  });
  const long = { input: [1, 2, 3, 4, 5] };
  await expect(embeddings(long, served, queueClient)).rejects.toMatchObject({ param: 'input' });
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
    status: 400,
    message: expect.stringMatching(/ended before/),
  });
});

test('events wait for their reader to a bound, and end with an error or with [DONE]', () => {
  const sent: string[] = [];
  const response = Object.assign(new EventEmitter(), {
    destroyed: false,
    writableEnded: false,
    writableLength: 0,
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
    'data: {"a":1}\n\n',
    ': waiting\n\n',
    'data: {"a":2}\n\n',
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

  const prototype = InferenceServer.prototype as unknown as { limitFinalWrite(item: object): void };
  function limitedResponse(more: object = {}) {
    const response = Object.assign(new EventEmitter(), {
      destroyed: false,
      writableFinished: false,
      ...more,
      destroy: jest.fn(),
    });
    prototype.limitFinalWrite.call({ limits: { unreadSeconds: 2 } }, response);
    return response;
  }

  test('have a limit of time', () => {
    const response = limitedResponse();
    jest.advanceTimersByTime(1999);
    expect(response.destroy).not.toHaveBeenCalled();
    jest.advanceTimersByTime(1);
    expect(response.destroy).toHaveBeenCalledTimes(1);
  });

  test.each(['finish', 'close'])('have no timer after %s', (event) => {
    const response = limitedResponse();
    response.emit(event);
    expect(jest.getTimerCount()).toBe(0);
  });

  test.each([{ destroyed: true }, { writableFinished: true }])('have no timer with %j', (state) => {
    limitedResponse(state);
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
  expect(noModelError('x'.repeat(60), 'm', 'lora_name').message).toBe(
    `lora_name: expected "m", got "${'x'.repeat(60)}".`,
  );
  expect(noModelError('x'.repeat(61), 'm').message).toBe(
    `model: expected "m", got "${'x'.repeat(60)}". Change the name in the client, or rename the model (--model-name, --model).`,
  );
});

test('the last event of a stream has the finish reason, even without text', () => {
  const written: string[] = [];
  const response = {
    writeHead: () => {},
    write: (text: string) => written.push(text),
    end: () => {},
    writableLength: 0,
    destroyed: false,
    headersSent: false,
  };
  const answer = answerOpener(new TextFormat(tokenizer))({
    response: response as unknown as ServerResponse,
    delivery: { stream: true, includeUsage: false, tokenIds: false },
    choices: 1,
    model: 'm',
    promptTokens: 1,
    maxUnread: 1024,
    overflow: () => {},
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
