// Lists and removes models of the cache.
import { existsSync, mkdirSync, readdirSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { takeLock } from '../../lib/hub/blob-lock.js';
import { pullWith } from '../../lib/hub/pull.js';
import { hub } from '../../lib/index.js';
import { sha256 } from '../support/hub-server.js';
import { refusal } from '../support/refusal.js';
import { hubTest, NAME, noise, tiny } from './hub-support.js';

const localHubTest = hubTest();
const WEIGHTS = noise(50_000);
const blobs = (): string => join(localHubTest.cache, 'models--org--tiny', 'blobs');
beforeEach(() => {
  process.env.HF_HUB_CACHE = localHubTest.cache;
});

test('sizes count shared files once, and unfinished downloads separately', async () => {
  expect(await hub.models()).toEqual([]);
  const first = localHubTest.server.add(NAME, tiny(WEIGHTS));
  await pullWith(localHubTest.settings(), NAME, {});
  const second = localHubTest.server.add(NAME, { ...tiny(WEIGHTS), 'config.json': '{"b":1}' });
  await pullWith(localHubTest.settings(), NAME, {});
  writeFileSync(join(blobs(), `${'0'.repeat(64)}.parts.incomplete`), Buffer.alloc(4096, 1));
  const [model] = await hub.models();
  expect(model).toMatchObject({ name: NAME, unfinished: 4096 });
  expect(model?.bytes).toBe(50_000 + 2 + '{"model_type":"llama"}{"b":1}'.length);
  const commits = model?.revisions.map(({ commit, refs }) => [commit, refs]);
  expect(commits?.sort()).toEqual(
    [
      [first.commit, []],
      [second.commit, ['main']],
    ].sort(),
  );
  await hub.remove(NAME, { revision: second.commit });
  const [left] = await hub.models();
  expect(left?.revisions.map(({ commit }) => commit)).toEqual([first.commit]);
  expect(readdirSync(blobs())).toContain(sha256(WEIGHTS));
  expect(readdirSync(blobs())).toHaveLength(4);
});

test('files without links count too', async () => {
  const snapshot = join(localHubTest.cache, 'models--a--b', 'snapshots', 'ab'.repeat(20));
  mkdirSync(snapshot, { recursive: true });
  writeFileSync(join(snapshot, 'config.json'), '12345');
  expect(await hub.models()).toMatchObject([{ name: 'a/b', bytes: 5 }]);
});

test('files without links have a date, and removing their revision frees them', async () => {
  const before = Date.now() - 10_000;
  for (const commit of ['ab', 'cd']) {
    const snapshot = join(localHubTest.cache, 'models--a--b', 'snapshots', commit.repeat(20));
    mkdirSync(snapshot, { recursive: true });
    writeFileSync(join(snapshot, 'config.json'), commit.repeat(50));
  }
  const [model] = await hub.models();
  expect(model?.changed).toBeGreaterThan(before);
  expect(await hub.remove('a/b', { revision: 'ab'.repeat(20) })).toBe(100);
  expect(await hub.models()).toMatchObject([{ name: 'a/b', bytes: 100 }]);
});

test('a model under download is not removed', async () => {
  localHubTest.server.add(NAME, tiny(WEIGHTS));
  await pullWith(localHubTest.settings(), NAME, {});
  const path = join(localHubTest.cache, '.locks', 'models--org--tiny', `${sha256(WEIGHTS)}.lock`);
  const { signal } = new AbortController();
  const release = await takeLock(path, { signal, progress: async () => 0, onWait: () => {} });
  expect((await refusal(() => hub.remove(NAME))).message).toMatch(/that no process downloads/);
  await release?.();
  expect(await hub.remove(NAME)).toBeGreaterThan(50_000);
  expect(existsSync(join(localHubTest.cache, 'models--org--tiny'))).toBe(false);
  expect((await refusal(() => hub.remove('../x'))).code).toBe('DS_ARGUMENT');
});
