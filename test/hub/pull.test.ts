// pull() against a local server: the files that it chooses, the layout of the cache, revisions.
import {
  existsSync,
  lstatSync,
  mkdirSync,
  readdirSync,
  readFileSync,
  readlinkSync,
  symlinkSync,
  writeFileSync,
} from 'node:fs';
import { join } from 'node:path';

import { pullWith } from '../../lib/hub/pull.js';
import { gitSha1, sha256 } from '../support/hub-server.js';
import { refusal } from '../support/refusal.js';
import { hubTest, NAME, noise, tiny } from './hub-support.js';

const hub = hubTest();
const filesOf = (folder: string): string[] => readdirSync(folder).sort();

test('fetches config, tokenizer and safetensors into the layout of the cache', async () => {
  const weights = noise(100_000);
  const { commit } = hub.server.add(NAME, tiny(weights));
  const folder = await pullWith(hub.settings(), NAME, {});
  const model = join(hub.cache, 'models--org--tiny');
  expect(folder).toBe(join(model, 'snapshots', commit));
  expect(filesOf(folder)).toEqual([
    'config.json',
    'model.safetensors',
    'tokenizer.json',
    'tokenizer_config.json',
  ]);
  expect(readFileSync(join(folder, 'model.safetensors')).equals(weights)).toBe(true);
  expect(readlinkSync(join(folder, 'model.safetensors'))).toBe(`../../blobs/${sha256(weights)}`);
  const config = gitSha1(Buffer.from('{"model_type":"llama"}'));
  expect(readlinkSync(join(folder, 'config.json'))).toBe(`../../blobs/${config}`);
  expect(readFileSync(join(model, 'refs', 'main'), 'utf8')).toBe(commit);
  expect(existsSync(join(model, '.no_exist', commit, 'generation_config.json'))).toBe(true);
  const blobs = filesOf(join(model, 'blobs'));
  expect(blobs).toHaveLength(3); // The two JSON files "{}" are one blob.
  expect(blobs.filter((name) => /[^0-9a-f]/.test(name))).toEqual([]);
});

test('a second call sends one request, and none for a commit', async () => {
  const { commit } = hub.server.add(NAME, tiny());
  const folder = await pullWith(hub.settings(), NAME, {});
  hub.server.received.length = 0;
  expect(await pullWith(hub.settings(), NAME, {})).toBe(folder);
  expect(hub.server.received.map(({ path }) => path.split('?')[0])).toEqual([
    `/api/models/${NAME}/revision/main`,
  ]);
  hub.server.received.length = 0;
  expect(await pullWith(hub.settings(), NAME, { revision: commit })).toBe(folder);
  expect(hub.server.received).toEqual([]);
});

test('a new commit fetches only changed files', async () => {
  const weights = noise(100_000);
  hub.server.add(NAME, tiny(weights));
  await pullWith(hub.settings(), NAME, {});
  hub.server.received.length = 0;
  const { commit } = hub.server.add(NAME, { ...tiny(weights), 'config.json': '{"a":1}' });
  const folder = await pullWith(hub.settings(), NAME, {});
  expect(folder.endsWith(commit)).toBe(true);
  expect(hub.server.fileRequests().map(({ path }) => path.split('/').at(-1))).toEqual([
    'config.json',
  ]);
  expect(readFileSync(join(folder, 'model.safetensors')).equals(weights)).toBe(true);
});

test('branches, tags and commits have their own refs', async () => {
  const old = hub.server.add(NAME, tiny(), { revisions: ['v1', 'feature/x'] });
  const model = join(hub.cache, 'models--org--tiny');
  for (const revision of ['v1', 'feature/x']) {
    const folder = await pullWith(hub.settings(), NAME, { revision });
    expect(folder.endsWith(old.commit)).toBe(true);
    expect(readFileSync(join(model, 'refs', revision), 'utf8')).toBe(old.commit);
  }
  expect(existsSync(join(model, 'refs', 'main'))).toBe(false);
  const error = await refusal(() => pullWith(hub.settings(), NAME, { revision: 'v9' }));
  expect(error.message).toMatch(/existing branch, tag or commit.*404.*"v9"/);
});

test.each(['../x', '/main', 'a..b', '-x y', 'a\\b', 'x\0', '', 'a//b'])(
  'refuses the revision %j without a request',
  async (revision) => {
    const error = await refusal(() => pullWith(hub.settings(), NAME, { revision }));
    expect(error.code).toBe('DS_ARGUMENT');
    expect(hub.server.received).toEqual([]);
  },
);

test('fetches one set of weights: the shards of the index, or the single file', async () => {
  const shards = {
    'model-00001-of-00002.safetensors': noise(40_000, 5),
    'model-00002-of-00002.safetensors': noise(20_000, 6),
  };
  const map = Object.fromEntries(Object.keys(shards).map((name, i) => [`w${i}`, name]));
  const others = {
    'consolidated.safetensors': noise(30_000, 7),
    'model.fp16.safetensors': noise(9000, 8),
    'original/x.safetensors': noise(9000, 9),
    'onnx/model.onnx': 'x',
    'm.gguf': noise(9000),
  };
  const index = { 'model.safetensors.index.json': JSON.stringify({ weight_map: map }) };
  const { 'model.safetensors': whole, ...rest } = tiny();
  hub.server.add(NAME, { ...rest, ...shards, ...index, ...others });
  const folder = await pullWith(hub.settings(), NAME, {});
  expect(filesOf(folder).filter((name) => /safetensors|gguf|onnx|original/.test(name))).toEqual([
    ...Object.keys(shards),
    'model.safetensors.index.json',
  ]);
  hub.server.add(NAME, { ...tiny(), ...shards, ...index });
  const second = await pullWith(hub.settings(), NAME, {});
  expect(filesOf(second).filter((name) => name.endsWith('.safetensors'))).toEqual([
    'model.safetensors',
  ]);
  expect(whole).toBeDefined();
});

test('the option files selects only the files of its purpose', async () => {
  hub.server.add(NAME, tiny());
  const config = await pullWith(hub.settings(), NAME, { files: 'config' });
  expect(filesOf(config)).toEqual(['config.json']);
  const tokenizer = await pullWith(hub.settings(), NAME, { files: 'tokenizer' });
  expect(filesOf(tokenizer)).toEqual(['config.json', 'tokenizer.json', 'tokenizer_config.json']);
  hub.server.add('org/adapter', {
    'adapter_config.json': '{}',
    'adapter_model.safetensors': noise(11_000),
    'README.md': '',
    'optimizer.pt': noise(9000),
  });
  for (const files of ['model', 'adapter'] as const) {
    const folder = await pullWith(hub.settings(), 'org/adapter', { files });
    expect(filesOf(folder)).toEqual(['adapter_config.json', 'adapter_model.safetensors']);
  }
});

test('further chat templates are fetched too', async () => {
  hub.server.add(NAME, { ...tiny(), 'additional_chat_templates/tools.jinja': 'T' });
  const folder = await pullWith(hub.settings(), NAME, {});
  const path = join(folder, 'additional_chat_templates', 'tools.jinja');
  expect(readlinkSync(path)).toMatch(/^\.\.\/\.\.\/\.\.\/blobs\/[0-9a-f]{40}$/);
  expect(readFileSync(path, 'utf8')).toBe('T');
});

test('refuses repositories of pickles', async () => {
  const { 'model.safetensors': _, ...rest } = tiny();
  hub.server.add(NAME, rest);
  const error = await refusal(() => pullWith(hub.settings(), NAME, {}));
  expect(error.message).toMatch(/a repository with model\.safetensors, got "pytorch_model\.bin"/);
  expect(hub.server.fileRequests()).toEqual([]);
});

test('include adds other files, but never a pickle', async () => {
  hub.server.add(NAME, { ...tiny(), 'onnx/model.onnx': 'x', 'a.gguf': 'g' });
  const folder = await pullWith(hub.settings(), NAME, { include: ['*.gguf', 'onnx/*'] });
  expect(filesOf(folder)).toEqual(['a.gguf', 'onnx']);
  expect(filesOf(join(folder, 'onnx'))).toEqual(['model.onnx']);
  const pickle = await refusal(() => pullWith(hub.settings(), NAME, { include: '*.bin' }));
  expect(pickle.message).toMatch(/got "pytorch_model\.bin", a pickle/);
  const none = await refusal(() => pullWith(hub.settings(), NAME, { include: '*.txt' }));
  expect(none.message).toMatch(/files that match \*\.txt, got 8 other files/);
});

test('a listing of several pages is read completely', async () => {
  hub.server.add(NAME, tiny());
  hub.server.page = 2;
  const folder = await pullWith(hub.settings(), NAME, {});
  expect(filesOf(folder)).toHaveLength(4);
  expect(hub.server.received.filter(({ path }) => path.includes('/tree/'))).toHaveLength(3);
});

test('a cache written by Python is read without copies, and offline without requests', async () => {
  const files = tiny();
  const commit = 'ab'.repeat(20);
  const model = join(hub.cache, 'models--org--tiny');
  const snapshot = join(model, 'snapshots', commit);
  for (const path of ['refs', 'blobs', `snapshots/${commit}`, `.no_exist/${commit}`]) {
    mkdirSync(join(model, path), { recursive: true });
  }
  writeFileSync(join(model, 'refs', 'main'), commit);
  for (const path of ['config.json', 'tokenizer.json', 'model.safetensors']) {
    const bytes = Buffer.from(files[path] as Buffer);
    const hash = bytes.length > 10_000 ? sha256(bytes) : gitSha1(bytes);
    writeFileSync(join(model, 'blobs', hash), bytes);
    symlinkSync(`../../blobs/${hash}`, join(snapshot, path));
  }
  const before = lstatSync(join(snapshot, 'model.safetensors')).ino;
  const off = hub.settings({ offline: true });
  expect(await pullWith(off, NAME, {})).toBe(snapshot);
  expect(hub.server.received).toEqual([]);
  // Online: the server has the same commit, and two files more than Python has fetched.
  const repository = hub.server.add(NAME, files);
  repository.commit = commit;
  expect(await pullWith(hub.settings(), NAME, {})).toBe(snapshot);
  expect(hub.server.fileRequests().map(({ path }) => path.split('/').at(-1))).toEqual([]);
  expect(lstatSync(join(snapshot, 'model.safetensors')).ino).toBe(before);
  expect(filesOf(snapshot)).toContain('tokenizer_config.json'); // Its blob was there.
});

test('the offline error names the missing files', async () => {
  const off = hub.settings({ offline: true });
  const none = await refusal(() => pullWith(off, NAME, {}));
  expect(none.message).toMatch(/in the cache .*, got no revision "main"\. HF_HUB_OFFLINE is set/);
  hub.server.add(NAME, tiny());
  await pullWith(hub.settings(), NAME, { files: 'config' });
  const part = await refusal(() => pullWith(off, NAME, {}));
  expect(part.message).toMatch(/got revision "main" without model\.safetensors/);
  expect(await pullWith(off, NAME, { files: 'config' })).toContain('snapshots');
});
