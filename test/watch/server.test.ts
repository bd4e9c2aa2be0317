// The server of the watch page under hostile requests: nothing is read, nothing changes.
import { mkdirSync, mkdtempSync, readdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { connect } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { EventLog } from '../../lib/watch/event-log.js';
import { createToken } from '../../lib/watch/request-guard.js';
import { WatchServer } from '../../lib/watch/server.js';

const SECRET = 'the-secret-of-this-machine';
const CONFIG = 'only-for-the-owner';
const token = createToken();
let dir: string;
let server: WatchServer;
let port: number;

beforeAll(async () => {
  dir = mkdtempSync(join(tmpdir(), 'ds-watch-'));
  writeFileSync(join(dir, 'secret.txt'), SECRET);
  const log = new EventLog(join(dir, 'run'));
  const about = { model: CONFIG };
  log.write({ e: 'start', name: 'n', about, config: { a: CONFIG }, pid: 1, host: 'elsewhere' });
  log.write({ e: 'row', track: 'train', step: 1, values: { loss: 2 } });
  log.close();
  server = await WatchServer.start({ dirs: [join(dir, 'run')], port: 0, token });
  port = Number(new URL(server.url).port);
});
afterAll(async () => {
  await server.close();
  rmSync(dir, { recursive: true });
});

/** Sends raw bytes; resolves with all that comes back until the server or `ms` ends it. */
function raw(text: string, ms = 4000): Promise<string> {
  return new Promise((resolve) => {
    let answer = '';
    const socket = connect(port, '127.0.0.1', () => socket.write(text));
    const timer = setTimeout(() => socket.destroy(), ms);
    socket.on('data', (chunk: Buffer) => {
      answer += chunk.toString('latin1');
    });
    socket.on('error', () => {});
    socket.on('close', () => {
      clearTimeout(timer);
      resolve(answer);
    });
  });
}

const request = (target: string, headers: Record<string, string> = {}, method = 'GET'): string => {
  const all = { host: '127.0.0.1:4000', connection: 'close', ...headers };
  const lines = Object.entries(all).map(([name, value]) => `${name}: ${value}`);
  return `${method} ${target} HTTP/1.1\r\n${lines.join('\r\n')}\r\n\r\n`;
};
const owner = { authorization: `Bearer ${token}` };
const statusOf = (answer: string): number => Number(/^HTTP\/1\.1 (\d{3})/.exec(answer)?.[1] ?? 0);

const API = ['/api/runs', '/api/run?run=0', '/api/series?run=0', '/api/events?run=0'];

const UP = [
  '..',
  '%2e%2e',
  '..%2f',
  '%2e%2e%2f',
  '..\\',
  '%5c..',
  '....//',
  '%c0%ae%c0%ae',
  '.%00.',
];
const FILES = ['secret.txt', 'run/watch/events.jsonl', 'etc/passwd', 'proc/self/environ'];
const PATHS = [
  ...UP.flatMap((up) => FILES.map((file) => `/${up}/${up}/${file}`)),
  ...FILES.map((file) => `//${file}`),
  'app.js/../../events.ts',
  'api/',
  'api/runs/',
  'API/runs',
  'api/runs%00',
  'index.html',
].map((path) => (path.startsWith('/') ? path : `/${path}`));

const TOKENS = [
  ...[
    '',
    'x',
    token.slice(1),
    `${token}x`,
    token.toUpperCase(),
    createToken(),
    'null',
    'undefined',
  ],
  ...['%00', '*', "' or 1=1", '../', 'a'.repeat(128), 'a'.repeat(4000), `${token} `.repeat(2)],
];

const NAMES = [
  'evil.example',
  'localhost.evil.example',
  '127.0.0.1.evil.example',
  'localhost@evil',
];
const HOSTS = [
  ...NAMES.map((name) => `${name}:80`),
  ...['', '127.0.0.1:1:2', '[::2]', '128.0.0.1', '0.0.0.0', '127.1', '2130706433', '127.0.0.256'],
  ...[
    'localhost/x',
    'localhost?x',
    'local host',
    '::1',
    'localhost:999999',
    'evil.example#127.0.0.1',
  ],
];
const ORIGINS = [
  'http://evil.example',
  'https://evil.example',
  'null',
  'file://',
  'http://localhost',
  'http://127.0.0.1',
  'http://127.0.0.1:1',
  'https://127.0.0.1',
  'chrome-extension://abc',
];
const METHODS = [
  ...['POST', 'PUT', 'DELETE', 'PATCH', 'OPTIONS', 'TRACE', 'PROPFIND', 'MKCOL', 'MOVE', 'COPY'],
  ...['LOCK', 'SEARCH', 'PURGE', 'SUBSCRIBE', 'LINK', 'REPORT', 'M-SEARCH', 'ACL', 'BIND'],
];
const PARAMETERS = [
  ...['run=-1', 'run=1', 'run=0x0', 'run=1e0', 'run=', 'run=__proto__', 'run=../..', 'run=00000'],
  ...['run=0&axis=loss', 'run=0&axis=constructor', 'run=0&width=0', 'run=0&width=4001'],
  ...['run=0&width=1e9', 'run=0&width=NaN', 'run=0&from=x', 'run=0&to=Infinity', 'run=0&from='],
  ...['run=0&width=1.5', 'run[]=0', 'run=%30%00', 'run=0&width=-5'],
];

/** All requests: a name, raw bytes, and the statuses that refuse them (0: the connection ends). */
const HOSTILE: [string, string, readonly number[]][] = [
  ...PATHS.map((path): [string, string, number[]] => [path, request(path, owner), [404, 400]]),
  ...API.flatMap((route) =>
    TOKENS.map((text): [string, string, number[]] => [
      `${route} with token ${text.slice(0, 12)}`,
      request(route, { authorization: `Bearer ${text}` }),
      [401],
    ]),
  ),
  ...['Basic', 'bearer', 'Token', ''].map((kind): [string, string, number[]] => [
    `scheme ${kind}`,
    request('/api/runs', { authorization: `${kind} ${token}` }),
    [401],
  ]),
  ...API.map((route): [string, string, number[]] => [
    `cookie for ${route}`,
    request(route, { cookie: `token=${token}` }),
    [401],
  ]),
  ...[`/api/runs?token=${token}`, `/api/runs?${token}`].map((path): [string, string, number[]] => [
    'token in the query',
    request(path),
    [401],
  ]),
  ...HOSTS.map((host): [string, string, number[]] => [
    `host ${host}`,
    request('/api/run?run=0', { ...owner, host }),
    [403, 400],
  ]),
  ...ORIGINS.map((origin): [string, string, number[]] => [
    `origin ${origin}`,
    request('/api/run?run=0', { ...owner, origin }),
    [403],
  ]),
  ...['cross-site', 'same-site'].map((site): [string, string, number[]] => [
    site,
    request('/api/run?run=0', { ...owner, 'sec-fetch-site': site }),
    [403],
  ]),
  ...METHODS.map((method): [string, string, number[]] => [
    method,
    request('/api/run?run=0', owner, method),
    [405, 400, 0],
  ]),
  ...PARAMETERS.map((query): [string, string, number[]] => [
    query,
    request(`/api/series?${query}`, owner),
    [400],
  ]),
];

/** Not requests of HTTP, or not only. */
const BROKEN: [string, string][] = [
  ['no host', `GET /api/run?run=0 HTTP/1.1\r\nauthorization: Bearer ${token}\r\n\r\n`],
  ['HTTP/1.0', `GET /api/run?run=0 HTTP/1.0\r\nauthorization: Bearer ${token}\r\n\r\n`],
  ['whole URL', request('http://evil.example/api/run?run=0', owner)],
  ['own URL', request('http://127.0.0.1/api/run?run=0', owner)],
  ['asterisk', request('*', owner)],
  ['tunnel', request('evil.example:80', owner, 'CONNECT')],
  ['upgrade', request('/', { connection: 'upgrade', upgrade: 'websocket' })],
  ['HTTP/2', 'PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n'],
  ['TLS', '\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03'],
  ['long target', request(`/api/run?run=0&x=${'a'.repeat(2000)}`, owner)],
  ['huge header', request('/api/run?run=0', { ...owner, x: 'a'.repeat(20_000) })],
  [
    'many headers',
    request('/', Object.fromEntries([...Array(3000)].map((_, i) => [`x${i}`, '1']))),
  ],
  ['body', request('/api/run?run=0', { ...owner, 'content-length': '4' }).concat('abcd')],
  [
    'chunks',
    request('/api/run?run=0', { ...owner, 'transfer-encoding': 'chunked' }).concat('0\r\n\r\n'),
  ],
  ['two lengths', request('/', { 'content-length': '1, 2' })],
  ['expect', request('/api/run?run=0', { ...owner, expect: '200-ok' })],
  ['smuggled', request('/', { 'content-length': '0', 'transfer-encoding': 'chunked' })],
  ['line feeds', `GET / HTTP/1.1\nhost: 127.0.0.1\n\n`],
  ['zeros', '\0'.repeat(4096)],
  ['split header', request('/api/run?run=0', { authorization: `Bearer x\r\n ${token}` })],
];

test(`${HOSTILE.length + BROKEN.length} hostile requests read and change nothing`, async () => {
  expect(HOSTILE.length + BROKEN.length).toBeGreaterThanOrEqual(200);
  const before = readdirSync(dir, { recursive: true }).sort();
  const log = readFileSync(join(dir, 'run/watch/events.jsonl'));
  const wrong: string[] = [];
  const check = (name: string, answer: string): void => {
    if (answer.includes(SECRET) || answer.includes(CONFIG)) wrong.push(`${name}: read data`);
    if (/access-control-allow/i.test(answer)) wrong.push(`${name}: allows origins`);
  };
  for (let i = 0; i < HOSTILE.length; i += 16) {
    const some = HOSTILE.slice(i, i + 16);
    const answers = await Promise.all(some.map(([, bytes]) => raw(bytes)));
    for (const [at, [name, , statuses]] of some.entries()) {
      const answer = answers[at] as string;
      check(name, answer);
      if (!statuses.includes(statusOf(answer))) wrong.push(`${name}: ${statusOf(answer)}`);
    }
  }
  for (const [name, bytes] of BROKEN) check(name, await raw(bytes, 1500));
  expect(wrong).toEqual([]);
  expect(readdirSync(dir, { recursive: true }).sort()).toEqual(before);
  expect(readFileSync(join(dir, 'run/watch/events.jsonl')).equals(log)).toBe(true);
  expect(statusOf(await raw(request('/api/run?run=0', owner)))).toBe(200);
});

test('the owner reads the run; the page forbids foreign requests', async () => {
  const answer = await raw(request('/api/run?run=0', owner));
  expect(answer).toContain(CONFIG);
  const page = await raw(request('/'));
  expect(page).toMatch(/content-security-policy: default-src 'none'; script-src 'self'/i);
  expect(page).toMatch(/frame-ancestors 'none'/);
  expect(page).not.toContain('http://');
  expect(await raw(request('/', {}, 'HEAD'))).toMatch(/content-length: \d+\r\n.*\r\n\r\n$/s);
  for (const host of [`localhost:${port}`, '[::1]:9', 'LOCALHOST:1234']) {
    expect(statusOf(await raw(request('/api/runs', { ...owner, host })))).toBe(200);
  }
});

test('slow clients are cut off, and others are answered meanwhile', async () => {
  const slow = Array.from({ length: 40 }, () => raw('GET / HTTP/1.1\r\nhost: 127', 20_000));
  expect(statusOf(await raw(request('/api/runs', owner)))).toBe(200);
  const answers = await Promise.all(slow);
  expect(answers.every((answer) => !answer.includes('200 OK'))).toBe(true);
});

test('a folder without a run is an error that names it', async () => {
  const empty = join(dir, 'empty');
  mkdirSync(empty);
  const start = WatchServer.start({ dirs: [empty], port: 0, token, requireRuns: true });
  await expect(start).rejects.toMatchObject({ code: 'DS_IO', got: 'a folder without one' });
});
