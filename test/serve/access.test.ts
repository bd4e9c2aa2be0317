// Access to a server: API keys, and the hosts that a keyless local server answers.
import { connect } from 'node:net';
import { serve } from '../../lib/serve/index.js';
import { ask, withServer } from './client.js';
import { FakeEngine, tokenizer } from './fake-engine.js';

test.each([
  ['', /got an empty one/],
  [' one', /got U\+0020 at character 1/],
  ['one two', /got U\+0020 at character 4/],
  ['one\t', /got U\+0009 at character 4/],
  ['one\n', /got U\+000A at character 4/],
  ['schlüssel', /got U\+00FC at character 5/],
  ['key😀', /got U\+1F600 at character 4/],
  ['\x7f', /got U\+007F at character 1/],
  [7, /got 7/],
  [null, /got null/],
])('the key %j is refused', async (key, message) => {
  const apiKeys = ['good', key] as string[];
  const error = await serve(new FakeEngine(tokenizer), { port: 0, apiKeys }).catch((item) => item);
  expect(error).toMatchObject({ code: 'DS_ARGUMENT', op: 'serve apiKeys[1]' });
  expect(error.message).toMatch(message);
  if (typeof key === 'string' && key.length > 1) expect(error.message).not.toContain(key);
});

test('all paths of the API need a key, unknown ones and their root too', () =>
  withServer(
    async (url) => {
      const guarded = [
        '/v1',
        '/v1/',
        '/v1/none',
        '/v2/rerank',
        '/tokenize',
        '/detokenize',
        '/rerank',
      ];
      for (const path of [...guarded, '/tokenizer_info', '/v1?a=1']) {
        expect([path, (await ask(url + path)).status]).toEqual([path, 401]);
      }
      for (const path of ['/', '/v10', '/v1x/models', '/xtokenize', '/rerank/a', '/tokenize/']) {
        expect([path, (await ask(url + path)).status]).toEqual([path, 404]);
      }
      expect((await ask(`${url}/health`)).status).toBe(200);
    },
    { apiKeys: ['one'] },
  ));

test('keys that are not a list are refused', () =>
  expect(
    serve(new FakeEngine(tokenizer), { port: 0, apiKeys: 'one' as unknown as string[] }),
  ).rejects.toMatchObject({ code: 'DS_ARGUMENT', op: 'serve apiKeys' }));

test('every key of visible ASCII characters is accepted', async () => {
  const visible = Array.from({ length: 0x7e - 0x20 }, (_, i) => String.fromCharCode(0x21 + i));
  await withServer(
    async (url) => {
      const headers = { authorization: `Bearer ${visible.join('')}` };
      expect((await ask(`${url}/v1/models`, { headers })).status).toBe(200);
    },
    { apiKeys: [visible.join('')] },
  );
});

const localTexts = ['localhost', 'LOCALHOST:8000', '127.0.0.1', '127.1.2.3:80', '[::1]', '[::1]:1'];
const foreign = [
  ...['evil.example', 'evil.example:8000', '127.0.0.1.evil.example', '127.evil.example'],
  ...['localhost.evil.example', '128.0.0.1', '127.0.0.256', '127.0.0', '[::2]', '0.0.0.0', 'a'],
  ...['evil.example@127.0.0.1', '127.0.0.1/evil', '', '127.0.0.1:80:80', '[::1', '\u00ff'],
];
const paths = ['/health', '/metrics', '/v1/models', '/tokenize', '/absent'];

/** The answer to a request with any `Host` header, as text; Node's client refuses some. */
function statusOf(url: string, host: string, path: string): Promise<number> {
  return new Promise((resolve, reject) => {
    const socket = connect(Number(new URL(url).port), new URL(url).hostname);
    let text = '';
    socket.on('data', (chunk) => {
      text += chunk.toString('latin1');
    });
    socket.on('close', () => resolve(Number(text.split(' ')[1])));
    socket.on('error', reject);
    const head = `GET ${path} HTTP/1.1\r\nHost: ${host}\r\nConnection: close\r\n\r\n`;
    socket.end(Buffer.from(head, 'latin1'));
  });
}

test('a local server without a key answers only local host names', () =>
  withServer(async (url) => {
    for (const host of localTexts)
      expect([host, await statusOf(url, host, '/health')]).toEqual([host, 200]);
    for (const path of paths) {
      const named = foreign.map(async (host) => [host, await statusOf(url, host, path)]);
      expect(await Promise.all(named)).toEqual(foreign.map((host) => [host, 403]));
    }
    expect(await statusOf(url, '127.0.0.1', 'http://evil.example/health')).toBe(403);
    expect(await statusOf(url, 'evil.example', 'http://127.0.0.1/health')).toBe(403);
    const { json } = await ask(`${url}/health`, { headers: { host: 'evil.example' } });
    expect(json.error).toMatchObject({
      code: 'foreign_host',
      type: 'permission_error',
      message: expect.stringMatching(/\[::1\], got "evil\.example"\. .*--allowed-hosts/),
    });
  }));

test('other hosts are allowed by name', () =>
  withServer(
    async (url) => {
      const hosts = ['chat.example', 'Chat.example:80', 'b.example', 'localhost'];
      for (const host of hosts) expect(await statusOf(url, host, '/health')).toBe(200);
      expect(await statusOf(url, 'c.example', '/health')).toBe(403);
    },
    { allowedHosts: ['chat.example', 'b.example'] },
  ));

test.each([
  ['with a key', { apiKeys: ['one'] }],
  ['on all addresses', { host: '0.0.0.0' }],
  ['for any host', { allowedHosts: ['*'] }],
])('a server %s answers any host', (_, options) =>
  withServer(async (url) => expect(await statusOf(url, 'a.example', '/health')).toBe(200), options),
);

test.each([[['a:80']], [['']], [['A.example']], ['a.example'], [[3]], [['a b']]])(
  'the hosts %j are refused',
  (allowedHosts) =>
    expect(
      serve(new FakeEngine(tokenizer), { port: 0, allowedHosts: allowedHosts as string[] }),
    ).rejects.toMatchObject({ code: 'DS_ARGUMENT', op: 'serve allowedHosts' }),
);

test('keys change while the server runs, and the share of a key with them', async () => {
  const engine = new FakeEngine(tokenizer);
  const limits = { requests: 4 };
  const server = await serve(engine, { port: 0, apiKeys: ['one'], limits });
  try {
    const statusOf = async (key: string): Promise<number> => {
      const headers = { authorization: `Bearer ${key}` };
      return (await ask(`${server.url}/v1/models`, { headers })).status;
    };
    expect([await statusOf('one'), await statusOf('two')]).toEqual([200, 401]);
    server.setApiKeys(['two', 'three']);
    expect([await statusOf('one'), await statusOf('two'), await statusOf('three')]).toEqual([
      401, 200, 200,
    ]);
    const leaves = [server.admission.enter('a'), server.admission.enter('a')];
    expect(() => server.admission.enter('a')).toThrow(/of one key/);
    server.setApiKeys(['four']);
    leaves.push(server.admission.enter('a'));
    for (const leave of leaves) leave();
    expect(() => server.setApiKeys([])).toThrow(/setApiKeys: expected at least one key/);
    expect(() => server.setApiKeys(['five', 'a b'])).toThrow(/apiKeys\[1\]/);
    for (const none of [undefined, null, 'five'] as unknown[]) {
      expect(() => server.setApiKeys(none as string[])).toThrow(/apiKeys: expected a list of keys/);
    }
    expect([await statusOf('four'), await statusOf('five')]).toEqual([200, 401]);
  } finally {
    await server.stop();
  }
});
