// Connections and bodies: each has a bound, and a refused client keeps nothing open.
import { once } from 'node:events';
import { connect, Server, type Socket } from 'node:net';

import { BodyBudget } from '../../lib/serve/body-budget.js';
import { serve } from '../../lib/serve/index.js';
import { ask, until, withServer } from './client.js';
import { FakeEngine, tokenizer } from './fake-engine.js';

const COMPLETIONS = '/v1/completions';
const LONG = { bodySeconds: 1000, headSeconds: 1000 };

/** A client that never closes its side. */
function client(url: string, text = ''): Socket {
  const socket = connect({
    port: Number(new URL(url).port),
    host: '127.0.0.1',
    allowHalfOpen: true,
  });
  socket.on('error', () => {});
  socket.write(text);
  return socket;
}

const headOf = (path: string, length: number, more = ''): string =>
  `POST ${path} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n${more}content-length: ${length}\r\n\r\n`;

/** The bytes that a client reads until the server closes. */
async function readBy(socket: Socket): Promise<string> {
  let received = '';
  socket.setEncoding('utf8').on('data', (text) => {
    received += text;
  });
  await once(socket, 'end');
  return received;
}

test.each<[string, string, RegExp]>([
  ['no HTTP', 'nothing\r\n\r\n', /^HTTP\/1\.1 400 /],
  ['no key, with a body that does not come', headOf(COMPLETIONS, 1000), /^HTTP\/1\.1 401 /],
  [
    'no key, with a body that is not chunked as it says',
    `POST ${COMPLETIONS} HTTP/1.1\r\nhost: localhost\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n`,
    /^HTTP\/1\.1 400 .*no HTTP\/1\.1 request/s,
  ],
  ['no key', `GET /v1/models HTTP/1.1\r\nhost: localhost\r\n\r\n`, /^HTTP\/1\.1 401 /],
  [
    'a body that is too large and does not come',
    headOf(COMPLETIONS, 1e9, 'authorization: Bearer key\r\n'),
    /^HTTP\/1\.1 413 /,
  ],
])('a connection ends after its answer: %s', async (_, text, answer) => {
  await withServer(
    async (url, _, server) => {
      const socket = client(url, text);
      const received = await readBy(socket);
      expect(received).toMatch(answer);
      expect(received).toMatch(/connection: close/i);
      await until(() => server.openConnections === 0);
      socket.destroy();
    },
    { apiKeys: ['key'], limits: LONG },
  );
});

test.each<[string, string, RegExp, object]>([
  [
    'longer than 16 KiB',
    `GET /health HTTP/1.1\r\nhost: localhost\r\nx: ${'x'.repeat(17_000)}\r\n\r\n`,
    /^HTTP\/1\.1 431 Request Header Fields Too Large\r\n.*longer than 16 KiB/s,
    LONG,
  ],
  [
    'that come too slowly',
    'GET /health HTTP/1.1\r\nhost:',
    /^HTTP\/1\.1 408 Request Timeout\r\n.*came too slowly/s,
    { bodySeconds: 1, headSeconds: 1 },
  ],
])('headers %s are answered', async (_, text, answer, limits) => {
  await withServer(
    async (url) => {
      const socket = client(url, text);
      expect(await readBy(socket)).toMatch(answer);
      socket.destroy();
    },
    { limits },
  );
});

test('connections without a request make room for new ones', () =>
  withServer(
    async (url, _, server) => {
      const silent = Array.from({ length: 8 }, () => client(url));
      for (const socket of silent) socket.on('end', () => socket.destroy());
      await until(() => silent.filter(({ destroyed }) => destroyed).length === 4);
      expect(server.openConnections).toBe(4);
      const body = { prompt: [1, 2], max_tokens: 1 };
      expect((await ask(url + COMPLETIONS, { body })).status).toBe(200);
      for (const socket of silent) socket.destroy();
    },
    { limits: { ...LONG, connections: 4 } },
  ));

test('a connection with a request stays, and one more is closed', () =>
  withServer(
    async (url, engine) => {
      let open = (): void => {};
      engine.pace = () =>
        new Promise<void>((resolve) => {
          open = resolve;
        });
      const body = { prompt: [1, 2], max_tokens: 1 };
      const asked = ask(url + COMPLETIONS, { body });
      await until(() => engine.active === 1);
      await expect(ask(`${url}/health`)).rejects.toThrow();
      open();
      expect((await asked).status).toBe(200);
    },
    { limits: { ...LONG, connections: 1 } },
  ));

test('all bodies together have a bound, and small ones pass', () =>
  withServer(
    async (url, _, server) => {
      const begun = client(url, headOf(COMPLETIONS, 1e6) + ' '.repeat(200_000));
      await until(() => server.bodies.bytes === 200_000);
      const large = { prompt: 'a'.repeat(150_000) };
      const refused = await ask(url + COMPLETIONS, { body: large });
      expect(refused).toMatchObject({ status: 503, json: { error: { code: 'bodies_full' } } });
      const body = { prompt: [1, 2], max_tokens: 1 };
      expect((await ask(url + COMPLETIONS, { body })).status).toBe(200);
      begun.destroy();
      await until(() => server.bodies.bytes === 0);
      const later = await ask(url + COMPLETIONS, { body: large });
      expect(later.json.error.code).toBe('context_length_exceeded');
    },
    { limits: { ...LONG, bodiesBytes: 300_000 } },
  ));

test('bodies may reach the bound, and a body of 64 KiB always fits', () => {
  const budget = new BodyBudget(100_000);
  const [one, two, three] = [budget.open(), budget.open(), budget.open()];
  one.add(100_000);
  two.add(65_536);
  expect(budget.bytes).toBe(165_536);
  expect(() => two.add(1)).toThrow(/exceed the memory that this server allows/);
  expect(budget.bytes).toBe(100_000);
  three.add(1);
  one.close();
  one.close();
  expect(budget.bytes).toBe(1);
});

test('a request that runs holds its body', () =>
  withServer(async (url, engine, server) => {
    let open = (): void => {};
    engine.pace = () =>
      new Promise<void>((resolve) => {
        open = resolve;
      });
    const asked = ask(url + COMPLETIONS, { body: { prompt: [1, 2], max_tokens: 1 } });
    await until(() => engine.active === 1);
    expect(server.bodies.bytes).toBeGreaterThan(20);
    open();
    await asked;
    await until(() => server.bodies.bytes === 0);
  }));

test('late headers are answered soon after the limit', () =>
  withServer(
    async (url) => {
      const socket = client(url, 'GET /health HTTP/1.1\r\n');
      expect(await readBy(socket)).toMatch(/^HTTP\/1\.1 408 /);
      socket.destroy();
    },
    { limits: { bodySeconds: 1000, headSeconds: 1 } },
  ));

test('a system without free files does not end the server', async () => {
  const reported: unknown[] = [];
  const report = (failure: unknown) => reported.push(failure);
  const server = await serve(new FakeEngine(tokenizer), { port: 0, report });
  const { http } = server as unknown as { http: NodeJS.EventEmitter };
  const full = Object.assign(new Error('accept EMFILE'), { code: 'EMFILE' });
  const idle = client(server.url);
  await until(() => server.openConnections === 1);
  for (let i = 0; i < 3; ++i) http.emit('error', full);
  expect(reported).toEqual([full]);
  await until(() => server.openConnections === 0);
  expect((await ask(`${server.url}/health`)).status).toBe(200);
  idle.destroy();
  await server.kill();
});

test('an answer that fails without a free file ends its connection, not the server', async () => {
  const reported: unknown[] = [];
  const report = (failure: unknown) => reported.push(failure);
  const server = await serve(new FakeEngine(tokenizer), { port: 0, report });
  const full = Object.assign(new Error('EMFILE: too many open files'), { code: 'EMFILE' });
  Object.assign(server, {
    apiError: () => {
      throw full;
    },
  });
  await expect(ask(`${server.url}/nothing`)).rejects.toThrow();
  expect(reported).toEqual([full]);
  expect((await ask(`${server.url}/health`)).status).toBe(200);
  await server.kill();
});

test('more connections than half of the open files are refused', async () => {
  const limits = { connections: 2 ** 40 };
  const message = /serve limits connections: expected at most \d+, half .* got 1099511627776/;
  await expect(serve(new FakeEngine(tokenizer), { port: 0, limits })).rejects.toThrow(message);
});

test.each([undefined, 3000])(
  'the listen backlog equals the connection limit: %j',
  async (limit) => {
    const listen = jest.spyOn(Server.prototype, 'listen');
    const limits = limit === undefined ? {} : { connections: limit };
    const server = await serve(new FakeEngine(tokenizer), { port: 0, limits });
    const [given] = listen.mock.calls.at(-1) as unknown as [{ backlog: number }];
    listen.mockRestore();
    await server.stop();
    expect(given.backlog).toBe(limit ?? 1024);
  },
);
