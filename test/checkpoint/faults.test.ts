// Fails every file call of a save, an export and a consolidation once. Tests that the error is
// typed, the old or the new checkpoint is whole, and the next save cleans up.
import * as files from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';

import { consolidate } from '../../lib/checkpoint/index.js';
import { content, save, valuesOf } from './content.js';
import { callbackCalls, everyFault, nativeCalls, promisedCalls } from './failing-calls.js';

const CALLS = [
  ...promisedCalls('mkdir', 'readdir', 'rename', 'lstat', 'writeFile', 'readFile'),
  ...promisedCalls('unlink', 'rmdir', 'statfs'),
  ...callbackCalls('open', 'writeFile', 'fsync'),
  ...nativeCalls('syncPath', 'renameExclusive', 'lockFile', 'writeFile'),
];

let dir: string;
beforeEach(async () => {
  dir = await files.mkdtemp(join(tmpdir(), 'ds-faults-'));
});
afterEach(() => files.rm(dir, { recursive: true, force: true }));

const hiddenFiles = async () => (await files.readdir(dir)).filter((name) => name.startsWith('.'));

test('saves over a checkpoint, with latest and retention', async () => {
  await save(dir, 'old', content(1));
  await save(dir, 't', content(2));
  const places = await everyFault(
    CALLS,
    () => save(dir, 't', content(3), { keepLast: 1 }),
    async ({ place }) => {
      const { w, 'w.fp32': master } = await valuesOf(dir, 't');
      expect([place, w]).toEqual([place, master]);
      await valuesOf(dir);
      await save(dir, 'old', content(1));
      expect([place, await hiddenFiles()]).toEqual([place, []]);
    },
  );
  expect(places).toBeGreaterThan(40);
});

test('consolidations', async () => {
  const out = join(dir, 'out');
  await save(dir, 't', content(2));
  const places = await everyFault(
    CALLS,
    () => consolidate(dir, out),
    async ({ place }) => {
      const there = await files.readdir(out).catch(() => null);
      if (there) expect([place, there]).toEqual([place, ['model.safetensors']]);
      await files.rm(out, { recursive: true, force: true });
      await save(dir, 't', content(2));
      expect([place, await hiddenFiles()]).toEqual([place, []]);
    },
  );
  expect(places).toBeGreaterThan(15);
});
