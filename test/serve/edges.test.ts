// Tests edges of requests and answers: limits of lists and texts, last events, and closed clients.
import { EventEmitter } from 'node:events';
import { Agent, type ServerResponse } from 'node:http';
import type { Socket } from 'node:net';

import { answersIn } from '../../lib/serve/answer.js';
import { TextFormat } from '../../lib/serve/answer-format.js';
import { type ApiError, noModel } from '../../lib/serve/api-error.js';
import { PromptReader } from '../../lib/serve/prompt-reader.js';
import { RequestFields } from '../../lib/serve/request-fields.js';
import { RequestLife } from '../../lib/serve/request-life.js';
import { InferenceServer } from '../../lib/serve/server.js';
import { readTools } from '../../lib/serve/tools.js';
import type { Tokenizer } from '../../lib/text/index.js';
import type { JsonObject } from '../../types/json.js';
import { ask, withServer } from './client.js';
import { tokenizer } from './fake-engine.js';

const asker = { client: 'a', connection: {}, signal: new AbortController().signal };

/** A tokenizer without patterns: a token for each character. */
function reader(max: number): PromptReader {
  const plain = {
    ...{ hasPatterns: false, folder: '/nowhere', templateText: () => undefined },
    fewestTokens: (text: string) => text.length,
    encode: (text: string) => Int32Array.from(text, (char) => char.charCodeAt(0)),
  };
  const options = { threads: 1, max, characters: 100, seconds: 1 };
  return new PromptReader(plain as unknown as Tokenizer, options as never);
}

test('a short text is read without a thread, up to the last token that fits', async () => {
  const prompts = reader(3);
  expect(await prompts.text('abc', asker as never)).toEqual([97, 98, 99]);
  await expect(prompts.text('abcd', asker as never)).rejects.toMatchObject({
    ...{ status: 400, message: expect.stringMatching(/at least 4/) },
  });
  await prompts.close();
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
