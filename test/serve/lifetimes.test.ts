// How long requests live: clients that go or read slowly, time and queues that are over, failures,
// and the server's own end.
import { once, setMaxListeners } from 'node:events';
import { connect } from 'node:net';
import { setTimeout as delay } from 'node:timers/promises';
import { runInThisContext } from 'node:vm';

import { DsError } from '../../lib/errors.js';
import { serve } from '../../lib/serve/index.js';
import { ask, begin, eventsOf, open, until, withServer } from './client.js';
import { FakeEngine, textOf, tokenizer } from './fake-engine.js';

const PATH = '/v1/completions';
const prompt = [1, 2, 3];

/** Node's own object receives warnings; a test file has a copy. */
const node: NodeJS.Process = runInThisContext('process');

/** A pace that waits until it is let go, or the request is aborted. */
function gate(engine: FakeEngine): () => void {
  let open = () => {};
  const opened = new Promise<void>((resolve) => {
    open = resolve;
  });
  engine.pace = () => {
    const signal = engine.requests.at(-1)?.signal as AbortSignal;
    setMaxListeners(0, signal);
    return Promise.race([opened, once(signal, 'abort')]);
  };
  return open;
}

test.each([false, true])('a disconnect frees what the request held (stream: %s)', (stream) =>
  withServer(async (url, engine) => {
    const body = { prompt, max_tokens: 4000, stream, n: 2 };
    engine.pace = () => new Promise((resolve) => setTimeout(resolve, 1));
    const controller = new AbortController();
    const sent = fetch(url + PATH, {
      method: 'POST',
      body: JSON.stringify(body),
      signal: controller.signal,
      headers: { 'content-type': 'application/json' },
    });
    sent.catch(() => {});
    await until(() => engine.active === 1);
    if (stream) await sent;
    controller.abort();
    await until(() => engine.active === 0);
    expect(engine.aborted).toBe(1);
  }),
);

/** Sends `count` requests on one connection without waiting for answers. */
function sendPipelined(url: string, count: number, body: object) {
  const socket = connect(Number(new URL(url).port), '127.0.0.1');
  const content = JSON.stringify(body);
  const type = 'host: localhost\r\ncontent-type: application/json';
  const request = `POST ${PATH} HTTP/1.1\r\n${type}\r\ncontent-length: ${content.length}\r\n\r\n${content}`;
  socket.write(request.repeat(count));
  return socket;
}

test('a client that leaves frees the memory of its waiting requests', () =>
  withServer(async (url, engine) => {
    const warnings: Error[] = [];
    const keep = (warning: Error): void => void warnings.push(warning);
    node.on('warning', keep);
    gate(engine);
    const socket = sendPipelined(url, 12, { prompt, max_tokens: 4 });
    await until(() => engine.active === 12);
    socket.destroy();
    await until(() => engine.active === 0);
    node.off('warning', keep);
    expect([engine.aborted, warnings]).toEqual([12, []]);
  }));

test('a server that stops answers what waits behind another request', () =>
  withServer(async (url, engine, server) => {
    const opens: (() => void)[] = [];
    engine.pace = () => new Promise<void>((resolve) => opens.push(resolve));
    const socket = sendPipelined(url, 2, { prompt, max_tokens: 1 });
    await until(() => engine.active === 2);
    const stopped = server.stop();
    let received = '';
    opens.shift()?.();
    for await (const chunk of socket) {
      received += chunk;
      setTimeout(() => opens.shift()?.(), 20);
    }
    await stopped;
    expect(received.match(/HTTP\/1\.1 200/g)).toHaveLength(2);
  }));

test.each([true, false])(
  'no HTTP behind a request is not answered in its answer (stream: %s)',
  (stream) =>
    withServer(async (url, engine) => {
      const opens: (() => void)[] = [];
      engine.pace = (place) =>
        place === 0 ? Promise.resolve() : new Promise<void>((resolve) => opens.push(resolve));
      const socket = sendPipelined(url, 1, { prompt, max_tokens: 3, stream });
      const chunks: Buffer[] = [];
      socket.on('data', (chunk) => chunks.push(chunk));
      await until(() => opens.length === 1 && (chunks.length > 0 || !stream));
      socket.write('nothing\r\n\r\n');
      await once(socket, 'close');
      opens.shift()?.();
      const received = Buffer.concat(chunks).toString();
      expect(received.match(/HTTP\/1\.1/g) ?? []).toHaveLength(stream ? 1 : 0);
      await until(() => engine.active === 0);
      expect(engine.aborted).toBe(1);
    }),
);

test('a disconnect during the upload leaks nothing', () =>
  withServer(async (url, engine, server) => {
    const socket = connect(Number(new URL(url).port), '127.0.0.1');
    const head = `POST ${PATH} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n`;
    const begun = `${head}content-length: 100\r\n\r\n{"prompt"`;
    await new Promise((resolve) => socket.write(begun, resolve));
    await until(() => server.openConnections === 1);
    socket.destroy();
    await until(() => server.openConnections === 0);
    expect((await ask(url + PATH, { body: { prompt } })).status).toBe(200);
    expect(engine.requests).toHaveLength(1);
  }));

test(
  'a body that does not come is answered soon after its time',
  () =>
    withServer(
      async (url) => {
        const socket = connect(Number(new URL(url).port), '127.0.0.1');
        const head = `POST ${PATH} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n`;
        socket.write(`${head}content-length: 100\r\n\r\n{"prompt"`);
        const chunks: Buffer[] = [];
        for await (const chunk of socket) chunks.push(chunk as Buffer);
        expect(Buffer.concat(chunks).toString()).toMatch(/^HTTP\/1\.1 408 .*too slowly/s);
      },
      { limits: { bodySeconds: 1 } },
    ),
  20_000,
); // Node's default interval is 30 s.

/** Tokenizing it takes longer than a test. */
const endless = { prompt: ' '.repeat(4e6) };
const promptCharacters = 4e6;

test('a disconnect frees the thread that tokenizes the prompt', () =>
  withServer(
    async (url, _, server) => {
      const gone = [1, 2].map(() => open(`${url}/tokenize`, { body: endless }));
      for (const clientRequest of gone) clientRequest.on('error', () => {});
      await until(() => server.lives.size === 2);
      for (const clientRequest of gone) clientRequest.destroy();
      const body = { messages: [{ role: 'user', content: 'Hello' }], max_tokens: 2 };
      expect((await ask(`${url}/v1/chat/completions`, { body })).status).toBe(200);
      await until(() => server.lives.size + server.admission.running === 0);
    },
    { tokenizerThreads: 1, limits: { promptCharacters } },
  ));

test('the time limit of a request ends the reading of its prompt', () =>
  withServer(
    async (url) => {
      const { status, json } = await ask(`${url}/tokenize`, { body: endless });
      expect({ status, ...json.error }).toMatchObject({ status: 503, code: 'request_timeout' });
    },
    { limits: { requestSeconds: 1, promptCharacters } },
  ));

test('a stopping server ends the reading of a prompt at its time limit', () =>
  withServer(
    async (url, _, server) => {
      const asked = ask(`${url}/tokenize`, { body: endless });
      await until(() => server.lives.size === 1);
      await server.stop();
      expect(await asked).toMatchObject({ status: 503, json: { error: { code: 'stopping' } } });
    },
    { limits: { drainSeconds: 1, promptCharacters } },
  ));

test('a request of many prompts gives no warning', () =>
  withServer(async (url) => {
    const warnings: Error[] = [];
    const keep = (warning: Error): void => void warnings.push(warning);
    node.on('warning', keep);
    const prompts = Array.from({ length: 16 }, () => prompt);
    const { status, json } = await ask(url + PATH, { body: { prompt: prompts, max_tokens: 2 } });
    await new Promise((resolve) => setImmediate(resolve));
    node.off('warning', keep);
    expect([status, json.choices.length]).toEqual([200, 16]);
    expect(warnings).toEqual([]);
  }));

test('a slow reader is cut off at a limit, and stalls no other client', () =>
  withServer(
    async (url, engine) => {
      engine.padding = 'x'.repeat(1e5);
      const slow = await begin(url + PATH, { body: { prompt, max_tokens: 4000, stream: true } });
      slow.pause();
      // It is under way, and unread; others are served meanwhile.
      for (let i = 0; i < 5; ++i) {
        const { json } = await ask(url + PATH, { body: { prompt, max_tokens: 3 } });
        expect(json.choices[0].finish_reason).toBe('length');
      }
      const closed = new Promise((resolve) => slow.once('close', resolve));
      await until(() => engine.active === 0);
      slow.on('error', () => {}).resume();
      await closed;
      expect(slow.complete).toBe(false);
      expect(engine.aborted).toBe(1);
    },
    { limits: { unreadBytes: 2 ** 16 } },
  ));

test('a client that never reads is disconnected', () =>
  withServer(
    async (url, engine, server) => {
      engine.padding = 'x'.repeat(1e6);
      const stuck = await begin(url + PATH, { body: { prompt, max_tokens: 40 } });
      stuck.pause();
      const closed = new Promise((resolve) => stuck.once('close', resolve));
      await until(() => server.openConnections === 0);
      stuck.on('error', () => {}).resume();
      await closed;
      expect(stuck.complete).toBe(false);
    },
    { limits: { unreadSeconds: 1 } },
  ));

test.each([false, true])('the time limit ends a request (stream: %s)', (stream) =>
  withServer(
    async (url, engine) => {
      gate(engine);
      const reply = await ask(url + PATH, { body: { prompt, stream } });
      expect(reply).toMatchObject({ status: 503, json: { error: { code: 'request_timeout' } } });
      expect(reply.headers['x-should-retry']).toBe('false');
    },
    { limits: { requestSeconds: 1 } },
  ),
);

test('limits longer than a timer can run end nothing', async () => {
  const engine = new FakeEngine(tokenizer);
  engine.pace = () => delay(10);
  const long = 1e9;
  const limits = {
    requestSeconds: long,
    bodySeconds: long,
    unreadSeconds: long,
    drainSeconds: long,
  };
  await withServer(
    async (url, _, server) => {
      const body = { prompt: 'Hello', max_tokens: 4 };
      const { status } = await ask(`${url}/v1/completions`, { body });
      expect(status).toBe(200);
      const last = ask(`${url}/v1/completions`, { body });
      await until(() => engine.active === 1);
      await server.stop();
      expect((await last).status).toBe(200);
    },
    { limits },
    engine,
  );
});

test('a request above the limit gets 429', () =>
  withServer(
    async (url, engine) => {
      const open = gate(engine);
      const two = [1, 2].map(() => ask(url + PATH, { body: { prompt } }));
      await until(() => engine.active === 2);
      const third = await ask(url + PATH, { body: { prompt } });
      expect(third).toMatchObject({ status: 429, json: { error: { code: 'queue_full' } } });
      expect(third.headers['retry-after']).toBe('1');
      open();
      for (const { status } of await Promise.all(two)) expect(status).toBe(200);
      expect((await ask(url + PATH, { body: { prompt } })).status).toBe(200);
    },
    { limits: { requests: 2 } },
  ));

const failures: [string, unknown, number, RegExp][] = [
  ['a mistake of the request', refusal('DS_ARGUMENT'), 400, /expected less/],
  ['what never fits', refusal('DS_LIMIT'), 400, /expected less/],
  ['a shortage', refusal('DS_OUT_OF_MEMORY'), 503, /expected less/],
  ['a failure inside', new TypeError('secret'), 500, /the log of the server has the reason/],
];

function refusal(code: 'DS_ARGUMENT' | 'DS_LIMIT' | 'DS_OUT_OF_MEMORY'): DsError {
  return new DsError({ code, op: 'generate', expected: 'less', got: 'more' });
}

test.each(failures)(
  '%s of the engine, before the answer and in it',
  async (_, error, status, words) => {
    const reported: unknown[] = [];
    await withServer(
      async (url, engine) => {
        engine.failAt = { place: 0, error };
        for (const stream of [false, true]) {
          const reply = await ask(url + PATH, { body: { prompt, stream } });
          expect(reply.status).toBe(status);
          expect(reply.json.error.message).toMatch(words);
        }
        engine.failAt = { place: 12, error };
        const fullReply = await ask(url + PATH, { body: { prompt: [prompt, prompt] } });
        expect(fullReply.status).toBe(status);
        const streamed = { prompt, stream: true };
        const { text, status: begun } = await ask(url + PATH, { body: streamed });
        const { events, isDone } = eventsOf(text);
        expect([begun, isDone]).toEqual([200, false]);
        expect(events.at(-1).error.message).toMatch(words);
        expect(events.slice(0, -1).every(({ choices }) => choices.length === 1)).toBe(true);
      },
      { report: (failure) => reported.push(failure) },
    );
    expect(reported.filter((item) => item !== error)).toEqual([]);
    expect(reported.length > 0).toBe(status === 500);
  },
);

test('a server that stops ends what runs, takes nothing new, and closes its connections', async () => {
  const engine = new FakeEngine(tokenizer);
  const server = await serve(engine, { port: 0 });
  const { url } = server;
  const open = gate(engine);
  const [whole, streamed] = [false, true].map((stream) =>
    ask(url + PATH, { body: { prompt, max_tokens: 9, stream } }),
  );
  await until(() => engine.active === 2);
  const stopped = server.stop();
  await expect(ask(`${url}/health`)).rejects.toThrow(/ECONNREFUSED/);
  open();
  const text = textOf(prompt, 0, 9);
  expect((await whole)?.json.choices[0].text).toBe(text);
  const { events, isDone } = eventsOf((await streamed)?.text ?? '');
  expect(isDone).toBe(true);
  expect(events.map(({ choices }) => choices[0].text).join('')).toBe(text);
  await stopped;
});

test('a stopping server ends the remaining requests at its time limit', async () => {
  const engine = new FakeEngine(tokenizer);
  const server = await serve(engine, { port: 0, limits: { drainSeconds: 1 } });
  gate(engine);
  const asked = ask(server.url + PATH, { body: { prompt } });
  await until(() => engine.active === 1);
  await server.stop();
  expect(await asked).toMatchObject({ status: 503, json: { error: { code: 'stopping' } } });
  expect(engine.active).toBe(0);
});
