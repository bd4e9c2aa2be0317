// A hub that refuses, breaks connections, or sends wrong and hostile answers.
import {
  existsSync,
  mkdirSync,
  readdirSync,
  readFileSync,
  truncateSync,
  writeFileSync,
} from 'node:fs';
import { join } from 'node:path';

import { pullWith } from '../../lib/hub/pull.js';
import { HubServer, refuse, sha256 } from '../support/hub-server.js';
import { refusal } from '../support/refusal.js';
import { hubTest, NAME, noise, tiny } from './hub-support.js';

const hub = hubTest();
const WEIGHTS = noise(100_000);
const blobs = (): string => join(hub.cache, 'models--org--tiny', 'blobs');
const isWhole = (folder: string): boolean =>
  readFileSync(join(folder, 'model.safetensors')).equals(WEIGHTS);

test('the token is sent to the hub, never to its CDN', async () => {
  hub.server.add(NAME, tiny(WEIGHTS), { access: 'private' });
  const folder = await pullWith(hub.settings({ token: 'hf_reader' }), NAME, {});
  expect(isWhole(folder)).toBe(true);
  const { received } = hub.server;
  const tokens = (host: string) =>
    new Set(
      received
        .filter((received) => received.host === host)
        .map((received) => received.authorization),
    );
  expect(tokens('hub')).toEqual(new Set(['Bearer hf_reader']));
  expect(tokens('cdn')).toEqual(new Set([null]));
});

test('a listing that continues at another host is refused', async () => {
  hub.server.add(NAME, tiny());
  hub.server.fault = ({ path, host }, response) => {
    if (host !== 'hub' || !path.includes('/tree/')) return false;
    response.setHeader('Link', `<${hub.server.cdnUrl}/next>; rel="next"`);
    return false;
  };
  const error = await refusal(() => pullWith(hub.settings({ token: 'hf_x' }), NAME, {}));
  expect(error.message).toMatch(/the next page on http.*a page on 127/);
  expect(hub.server.received.filter(({ host }) => host === 'cdn')).toEqual([]);
});

test.each<[string, 'gated' | 'private', string | null, RegExp]>([
  [
    'gated, no token',
    'gated',
    null,
    /access to this gated model.*401.*Accept.*\/org\/tiny.*HF_TOKEN/,
  ],
  ['gated, another account', 'gated', 'hf_other', /403.*Accept.*\(HF_TOKEN\) has no access yet/],
  ['private, no token', 'private', null, /401, RepoNotFound.*private model needs HF_TOKEN/],
  ['private, another account', 'private', 'hf_other', /404.*token of HF_TOKEN may lack access/],
])('%s', async (_name, access, token, message) => {
  hub.server.add(NAME, tiny(), { access });
  const settings = hub.settings({ token, ...(token && { tokenSource: 'HF_TOKEN' }) });
  const error = await refusal(() => pullWith(settings, NAME, {}));
  expect(error).toMatchObject({ code: 'DS_HUB', op: NAME });
  expect(error.message).toMatch(message);
  expect(error.message).not.toContain('hf_other');
});

test('the error of an unknown name mentions the folder', async () => {
  const error = await refusal(() => pullWith(hub.settings(), 'runs/llama', {}));
  expect(error.message).toMatch(/a folder on this machine, or a model of http.*Check the spelling/);
});

test('429 waits for Retry-After', async () => {
  hub.server.add(NAME, tiny(WEIGHTS));
  hub.server.fault = ({ count }, response) => {
    if (count > 1) return false;
    response.setHeader('Retry-After', '0.01');
    refuse(response, [429, '', 'Too many requests']);
    return true;
  };
  expect(isWhole(await pullWith(hub.settings(), NAME, {}))).toBe(true);
});

test('a Retry-After of an hour fails at once', async () => {
  hub.server.fault = (_request, response) => {
    response.setHeader('Retry-After', '3600');
    refuse(response, [429, '', '']);
    return true;
  };
  const error = await refusal(() => pullWith(hub.settings(), NAME, {}));
  expect(error.message).toMatch(/within the rate limit, got status 429/);
  expect(hub.server.received).toHaveLength(1);
});

test('after random disconnects, ranges of the rest are requested', async () => {
  hub.server.add(NAME, tiny(WEIGHTS));
  hub.server.chunk = 1000;
  let seed = 7;
  let drops = 0;
  hub.server.fault = ({ host }, response) => {
    seed = (seed * 48_271) % 2_147_483_647;
    if (host === 'cdn' && drops < 12) {
      drops += 1;
      setTimeout(() => response.destroy(), seed % 12);
    }
    return false;
  };
  expect(isWhole(await pullWith(hub.settings(), NAME, {}))).toBe(true);
  const ranges = hub.server.received.filter(({ host }) => host === 'cdn');
  expect(ranges.length).toBeGreaterThan(4);
  expect(ranges.every(({ range }) => range?.startsWith('bytes='))).toBe(true);
  expect(readdirSync(blobs()).filter((name) => name.includes('.'))).toEqual([]);
});

test('a server without ranges, which drops connections', async () => {
  hub.server.add(NAME, tiny(WEIGHTS));
  hub.server.sendsRanges = false;
  hub.server.chunk = 1000;
  hub.server.fault = ({ host, count }, response) => {
    if (host === 'cdn' && count === 6) setTimeout(() => response.destroy(), 5);
    return false;
  };
  expect(isWhole(await pullWith(hub.settings(), NAME, {}))).toBe(true);
});

test('a partial file of Python is continued', async () => {
  hub.server.add(NAME, tiny(WEIGHTS));
  mkdirSync(blobs(), { recursive: true });
  const path = join(blobs(), `${sha256(WEIGHTS)}.incomplete`);
  writeFileSync(path, WEIGHTS.subarray(0, 70_000));
  expect(isWhole(await pullWith(hub.settings(), NAME, {}))).toBe(true);
  const ranges = hub.server.received.filter(({ host }) => host === 'cdn').map(({ range }) => range);
  expect(ranges.sort()).toEqual(['bytes=70000-89999', 'bytes=90000-99999']);
  expect(existsSync(path)).toBe(false);
});

test('wrong bytes of an earlier process fail the checksum, and are fetched again', async () => {
  hub.server.add(NAME, tiny(WEIGHTS));
  mkdirSync(blobs(), { recursive: true });
  writeFileSync(join(blobs(), `${sha256(WEIGHTS)}.incomplete`), noise(70_000, 9));
  expect(isWhole(await pullWith(hub.settings(), NAME, {}))).toBe(true);
});

test('a server that sends other bytes than it listed', async () => {
  hub.server.add(NAME, tiny(WEIGHTS));
  hub.server.edit = (entries) =>
    entries.map((entry) =>
      entry.path === 'model.safetensors'
        ? { ...entry, lfs: { oid: '0'.repeat(64), size: WEIGHTS.length } }
        : entry,
    );
  const error = await refusal(() => pullWith(hub.settings(), NAME, {}));
  expect(error.message).toMatch(/SHA-256 0{64}, got [0-9a-f]{64}, twice/);
  expect(readdirSync(blobs()).filter((name) => name.startsWith('000'))).toEqual([]);
});

test('status 416 restarts the download', async () => {
  hub.server.add(NAME, tiny(WEIGHTS));
  hub.server.fault = ({ host, count }, response) => {
    if (host !== 'cdn' || count > 1) return false;
    response.writeHead(416).end();
    return true;
  };
  expect(isWhole(await pullWith(hub.settings(), NAME, {}))).toBe(true);
});

test('a damaged blob is fetched again', async () => {
  hub.server.add(NAME, tiny(WEIGHTS));
  const folder = await pullWith(hub.settings(), NAME, {});
  truncateSync(join(folder, 'model.safetensors'), 5000);
  await pullWith(hub.settings(), NAME, { include: '*.safetensors' });
  expect(isWhole(folder)).toBe(true);
});

test('a silent server ends the download with an error', async () => {
  hub.server.fault = () => true;
  const error = await refusal(() => pullWith(hub.settings({ stallMs: 50 }), NAME, {}));
  expect(error.message).toMatch(/a folder, or an answer of http.*got no byte for 0\.05 s/);
  expect(error.hint).toContain(`If ${NAME} is a folder, check its path: it does not exist.`);
});

/** The URL of a port without a server. */
async function closedPort(): Promise<string> {
  const server = await HubServer.start();
  await server.stop();
  return server.url;
}

test('without a network the cached commit is used, with a warning', async () => {
  hub.server.add(NAME, tiny(WEIGHTS));
  const folder = await pullWith(hub.settings(), NAME, {});
  const warned = jest.spyOn(process, 'emitWarning').mockImplementation();
  const down = hub.settings({ endpoint: await closedPort() });
  expect(await pullWith(down, NAME, {})).toBe(folder);
  expect(warned.mock.calls).toEqual([
    [expect.stringMatching(/Using the cached commit [0-9a-f]{8}\./), expect.anything()],
  ]);
  warned.mockRestore();
  const other = await refusal(() => pullWith(down, 'org/other', {}));
  expect(other.message).toMatch(/ECONNREFUSED/);
});

test.each([
  '../evil',
  '/etc/passwd',
  'a\\..\\b',
  'C:\\x',
  'C:x',
  'a\0b',
  'a\nb',
  'a/../../b',
  'nul',
  'com1.txt',
  'x/',
  'a//b',
  'dot.',
  `${'a'.repeat(256)}`,
  'x'.repeat(2000),
  '',
  7,
  null,
])('refuses the file name %j of a listing', async (path) => {
  hub.server.add(NAME, tiny());
  hub.server.edit = (entries) => [...entries, { ...entries[0], path }];
  const error = await refusal(() => pullWith(hub.settings(), NAME, { include: '*' }));
  expect(error.message).toMatch(/safe names of files/);
  expect(error.message).toMatch(/^[ -~]*$/);
  expect(hub.server.fileRequests()).toEqual([]);
});

test.each<[string, (entries: Record<string, unknown>[]) => unknown]>([
  ['no list', () => ({ a: 1 })],
  ['no objects', () => [1]],
  ['a hash that is a path', (all) => all.map((item) => ({ ...item, oid: '../../x' }))],
  ['a negative size', (all) => all.map((item) => ({ ...item, size: -1, lfs: undefined }))],
  ['too many entries', (all) => Array(60_000).fill(all[0])],
])('refuses a listing with %s', async (_name, edit) => {
  hub.server.add(NAME, tiny());
  hub.server.edit = edit;
  expect((await refusal(() => pullWith(hub.settings(), NAME, {}))).code).toBe('DS_HUB');
  expect(hub.server.fileRequests()).toEqual([]);
});

test('stopped by a signal; the next call fetches the rest', async () => {
  hub.server.add(NAME, tiny(WEIGHTS));
  hub.server.chunk = 500;
  const controller = new AbortController();
  hub.server.fault = ({ host }) => {
    if (host === 'cdn') setTimeout(() => controller.abort(new Error('stop')), 20);
    return false;
  };
  const { signal } = controller;
  await expect(pullWith(hub.settings(), NAME, { signal })).rejects.toThrow('stop');
  hub.server.fault = null;
  expect(isWhole(await pullWith(hub.settings(), NAME, {}))).toBe(true);
});
