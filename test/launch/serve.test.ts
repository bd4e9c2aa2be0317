// Output and exit codes of `ds serve`, by host, keys and failures.
import { mkdirSync, mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import type { ServeFlags } from '../../lib/launch/engine-flags.js';
import { withAdvice } from '../../lib/launch/foreign-flags.js';
import { findModels } from '../../lib/launch/models-dir.js';
import { serveCommand, serveInProcess } from '../../lib/launch/serve.js';
import * as serving from '../../lib/serve/index.js';

jest.mock('../../lib/serve/index.js', () => ({
  openServed: jest.fn(),
  openPool: jest.fn(),
  serve: jest.fn(),
  servePool: jest.fn(),
  requireKey: jest.requireActual('../../lib/serve/access.js').requireKey,
}));

const engine = { follow: jest.fn(async () => {}), destroy: jest.fn(async () => {}) };
const server = {
  url: 'http://there:1',
  served: { maxTokens: 64, tokenizer: {}, canChat: true, engine: { module: {} } } as object | null,
  admission: { running: 0 },
  ready: Promise.resolve(),
  failed: new Promise<Error>(() => {}),
  stop: jest.fn(async () => {}),
};

let dir: string;
let key: string;
beforeAll(() => {
  dir = mkdtempSync(join(tmpdir(), 'ds-serve-'));
  key = join(dir, 'keys');
  writeFileSync(key, 'a-key\n');
});
afterAll(() => rmSync(dir, { recursive: true }));

const inherited = process.env.DS_API_KEY;
beforeEach(() => {
  delete process.env.DS_API_KEY;
  jest.mocked(serving.openServed).mockResolvedValue(engine as never);
  jest.mocked(serving.serve).mockImplementation(async (open) => {
    await (open as () => Promise<unknown>)();
    return server as never;
  });
});
afterEach(() => {
  jest.restoreAllMocks();
  jest.clearAllMocks();
  if (inherited === undefined) delete process.env.DS_API_KEY;
  else process.env.DS_API_KEY = inherited;
});

/** Serves until SIGTERM. */
async function serveWith(options: Partial<ServeFlags> & Record<string, unknown>) {
  const errors: string[] = [];
  const lines: string[] = [];
  jest.spyOn(console, 'error').mockImplementation((text) => void errors.push(text));
  jest.spyOn(console, 'log').mockImplementation((text) => void lines.push(text));
  const flags = {
    host: '127.0.0.1',
    port: 0,
    tokenizerThreads: 1,
    tp: 1,
    graphs: true,
    ...options,
  };
  const ended = serveInProcess(join(dir, 'tiny'), flags as ServeFlags);
  // It listens for signals before it waits for anything.
  process.emit('SIGTERM', 'SIGTERM');
  return { code: await ended, errors: errors.join('\n'), lines: lines.join('\n') };
}

test.each(['0.0.0.0', '192.168.0.7', 'example.org', '::', '128.0.0.1'])(
  'a server on %s without a key warns that any client may send requests',
  async (host) => {
    const { code, errors } = await serveWith({ host });
    expect(code).toBe(0);
    expect(errors).toContain(host);
    expect(errors).toMatch(/DS_API_KEY.*--api-key-file/);
  },
);

test.each(['127.0.0.1', '127.8.8.8', 'localhost', '::1'])(
  'a server on %s, which only this machine reaches, prints no warning about keys',
  async (host) => {
    expect((await serveWith({ host })).errors).toBe('');
  },
);

test('a server with a key on every address prints no warning', async () => {
  expect((await serveWith({ host: '0.0.0.0', apiKeyFile: key })).errors).toBe('');
  expect(jest.mocked(serving.serve).mock.lastCall?.[1]).toMatchObject({ apiKeys: ['a-key'] });
  process.env.DS_API_KEY = ' another ';
  expect((await serveWith({ host: '0.0.0.0' })).errors).toBe('');
  expect(jest.mocked(serving.serve).mock.lastCall?.[1]).toMatchObject({ apiKeys: ['another'] });
});

test('each limit option sets a limit of the server', async () => {
  const flags = {
    maxBody: 1,
    maxBodies: 2,
    maxPromptTokens: 3,
    maxPromptChars: 4,
    promptTimeout: 5,
    maxAnswers: 6,
    maxRequests: 7,
    maxConnections: 8,
    headTimeout: 9,
    bodyTimeout: 10,
    requestTimeout: 11,
    drainTimeout: 12,
  };
  await serveWith(flags);
  expect(jest.mocked(serving.serve).mock.lastCall?.[1]?.limits).toEqual({
    bodyBytes: 1,
    bodiesBytes: 2,
    promptTokens: 3,
    promptCharacters: 4,
    promptSeconds: 5,
    answers: 6,
    requests: 7,
    connections: 8,
    headSeconds: 9,
    bodySeconds: 10,
    requestSeconds: 11,
    drainSeconds: 12,
  });
});

test('several ranks cannot share one device', async () => {
  const flags = { tp: 2, device: 'cuda:0', tokenizerThreads: 1, graphs: true };
  await expect(serveCommand(join(dir, 'tiny'), flags as ServeFlags)).rejects.toThrow(
    /--device: expected "cuda" or "cpu" without a number, with --tp, got "cuda:0"/,
  );
});

test('a failed engine ends the command with 3, after health checks can see it', async () => {
  const lost = new Error('rank 1: ended');
  const kill = jest.fn(async () => {});
  const failing = { ...server, failed: Promise.resolve(lost), kill };
  jest.mocked(serving.serve).mockResolvedValue(failing as never);
  const errors: string[] = [];
  jest.spyOn(console, 'error').mockImplementation((text) => void errors.push(text));
  jest.spyOn(console, 'log').mockImplementation(() => {});
  const flags = { host: '127.0.0.1', port: 0, tokenizerThreads: 1, tp: 1, graphs: true };
  const ended = serveInProcess(join(dir, 'tiny'), flags as ServeFlags);
  const isOver = ended.then(() => true);
  const turn = () => new Promise<false>((resolve) => setImmediate(resolve, false));
  while (errors.length === 0 && !(await Promise.race([isOver, turn()])));
  expect(errors).toEqual(['ds serve: rank 1: ended']);
  expect(kill).not.toHaveBeenCalled();
  process.emit('SIGTERM', 'SIGTERM');
  expect(await ended).toBe(3);
  expect(kill).toHaveBeenCalledTimes(1);
});

test('an empty DS_API_KEY and a file without a key are refused', async () => {
  process.env.DS_API_KEY = ' ';
  await expect(serveWith({ host: '0.0.0.0' })).rejects.toThrow(/DS_API_KEY: expected a key/);
  delete process.env.DS_API_KEY;
  const empty = join(dir, 'empty');
  writeFileSync(empty, '\n \n');
  await expect(serveWith({ apiKeyFile: empty })).rejects.toThrow(/--api-key-file: expected a file/);
  const absent = join(dir, 'absent');
  await expect(serveWith({ apiKeyFile: absent })).rejects.toThrow(
    /--api-key-file: .*readable file/,
  );
});

test('a signal stops the server, then ends the engine, and leaves no listener', async () => {
  const before = process.listenerCount('SIGINT');
  const { code, lines } = await serveWith({ modelName: 'mine' });
  expect(code).toBe(0);
  expect(lines).toMatch(/^mine at http:\/\/there:1\/v1: loading/);
  expect(lines).toContain('ready: 64 tokens of prompt and answer\n');
  expect(lines).toMatch(/SIGTERM: 0 requests/);
  const [stopped] = server.stop.mock.invocationCallOrder as [number];
  const [destroyed] = engine.destroy.mock.invocationCallOrder as [number];
  expect(stopped).toBeLessThan(destroyed);
  expect(process.listenerCount('SIGINT')).toBe(before);
});

test('the first lines mention a model without chat template or tokenizer', async () => {
  const { served: whole } = server;
  try {
    const engine = { module: { maxSeq: 32 } };
    server.served = { maxTokens: 8, tokenizer: {}, canChat: false, engine };
    expect((await serveWith({})).lines).toMatch(
      /8 tokens of prompt and answer \(--context: up to 32\), without a chat template/,
    );
    const bound = { ...engine, isCacheBound: true };
    server.served = { maxTokens: 8, tokenizer: {}, canChat: true, engine: bound };
    expect((await serveWith({})).lines).toMatch(
      /8 tokens of prompt and answer, as many as the cache holds \(the model: 32\)$/m,
    );
    server.served = { maxTokens: 8, tokenizer: null, canChat: false, engine };
    const { lines } = await serveWith({});
    expect(lines).toMatch(/, without a tokenizer: prompts are tokens$/m);
    expect(lines).not.toMatch(/chat template/);
  } finally {
    server.served = whole;
  }
});

test('a model that does not load ends the command with its error', async () => {
  const lost = new Error('no such model');
  const failing = { ...server, ready: Promise.reject(lost) };
  failing.ready.catch(() => {});
  jest.mocked(serving.serve).mockResolvedValue(failing as never);
  await expect(serveWith({})).rejects.toThrow(lost);
  expect(server.stop).toHaveBeenCalledTimes(1);
});

test.each([
  [undefined, {}, /^serve: expected a model, --model NAME=FOLDER or --models-dir, got none/],
  [
    'tiny',
    { modelsDir: '.' },
    /--models-dir: expected no model folder as the argument, got "tiny"/,
  ],
  [undefined, { modelsDir: '.', tp: 2 }, /--tp: expected no such option with --models-dir/],
  [undefined, { modelsDir: 'nowhere' }, /--models-dir: expected a readable folder, got ENOENT/],
  ['tiny', { model: { a: 'b' } }, /--model: expected no model folder as the argument, got "tiny"/],
  [
    'tiny',
    { modelMemory: 5 },
    /--model-memory, --model-idle: expected --model NAME=FOLDER or --models-dir/,
  ],
  [undefined, { model: { a: 'b' }, tp: 2 }, /--tp: expected no such option with --model, got both/],
  [undefined, { model: { a: 'b' }, adapter: { c: 'd' } }, /--adapter: expected no such option/],
  [undefined, { model: { a: 'b' }, revision: 'x' }, /--revision: expected no such option/],
  [undefined, { model: { a: 'b' }, modelName: 'x' }, /--model-name: expected no such option/],
])('options of several models: %j with %j', async (folder, flags, message) => {
  await expect(serveCommand(folder, flags as unknown as ServeFlags)).rejects.toThrow(message);
});

test('--models-dir adds the models of a folder, by name', async () => {
  const home = mkdtempSync(join(dir, 'models-'));
  const empty = /expected folders with config\.json, or GGUF files, got none in ".*models-/;
  expect(() => findModels(home)).toThrow(empty);
  for (const [folder, file] of [
    ['qwen', 'config.json'],
    ['.hidden', 'config.json'],
    ['tuned', 'adapter_config.json'],
    ['notes', 'readme.md'],
  ] as const) {
    mkdirSync(join(home, folder));
    writeFileSync(join(home, folder, file), '{}');
  }
  writeFileSync(join(home, 'a.gguf'), '');
  writeFileSync(join(home, 'b-00001-of-00002.gguf'), '');
  writeFileSync(join(home, 'b-00002-of-00002.gguf'), '');
  writeFileSync(join(home, 'other.txt'), '');
  const models = { a: 'a.gguf', b: 'b-00001-of-00002.gguf', qwen: 'qwen', tuned: 'tuned' };
  const places = Object.entries(models).map(([name, place]) => [name, join(home, place)]);
  expect(Object.entries(findModels(home))).toEqual(places);
  const flags = { host: '127.0.0.1', port: 0, graphs: true, modelsDir: home };
  const both = { ...flags, model: { qwen: 'elsewhere' } } as unknown as ServeFlags;
  const twice = /--models-dir: expected a name for each model, got "qwen"/;
  await expect(serveCommand(undefined, both)).rejects.toThrow(twice);
  writeFileSync(join(home, 'qwen.gguf'), '');
  expect(() => findModels(home)).toThrow(/a name for each model, got two models "qwen"/);
});

test('--model opens a pool with its limits, and prints how models load', async () => {
  jest.mocked(serving.openPool).mockReturnValue('a pool' as never);
  const models = [{ name: 'a' }, { name: 'b' }];
  const pooled = { ...server, served: null, pool: { models } };
  jest.mocked(serving.servePool).mockResolvedValue(pooled as never);
  const lines: string[] = [];
  jest.spyOn(console, 'log').mockImplementation((text) => void lines.push(text));
  const folders = { a: 'one', b: 'two' };
  const home = mkdtempSync(join(dir, 'more-'));
  writeFileSync(join(home, 'c.gguf'), '');
  const flags = { host: '127.0.0.1', port: 0, graphs: true, dtype: 'bf16', model: folders };
  const bounds = { modelMemory: 5, modelIdle: 7, modelsDir: home };
  const ended = serveCommand(undefined, { ...flags, ...bounds } as unknown as ServeFlags);
  await new Promise((resolve) => setImmediate(resolve));
  process.emit('SIGTERM', 'SIGTERM');
  expect(await ended).toBe(0);
  expect(jest.mocked(serving.openPool).mock.lastCall).toMatchObject([
    { ...folders, c: join(home, 'c.gguf') },
    { config: { dtype: 'bf16' } },
    { memory: 5, idleSeconds: 7 },
  ]);
  expect(jest.mocked(serving.servePool).mock.lastCall?.[0]).toBe('a pool');
  expect(lines.join('\n')).toContain('a, b, each loaded by its first request');
});

test.each([
  [
    "error: unknown option '--api-key'\n(Did you mean --api-key-file?)\n",
    /key'\n\(Set DS_API_KEY, /,
  ],
  ["error: unknown option '-ngl'\n", /-ngl'\n\(All layers are on the GPU; [^\n]*\)\n$/],
  [
    "error: unknown option '--contxt'\n(Did you mean --context?)\n",
    /\(Did you mean --context\?\)\n$/,
  ],
  ["error: unknown option '--constructor'\n", /constructor'\n$/],
])('the error %j of an option of another server gets advice', (error, expected) => {
  expect(withAdvice(error)).toMatch(expected);
});
