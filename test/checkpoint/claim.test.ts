// Tests the claims of concurrent saves in one folder.
import { mkdtempSync, readdirSync, rmSync, unlinkSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';

import { begin, finish } from '../../lib/checkpoint/commit.js';
import * as files from '../../lib/runtime/file.js';

jest.mock('../../lib/runtime/file.js', () => {
  const actual = jest.requireActual('../../lib/runtime/file.js');
  return { ...actual, lockFile: jest.fn(actual.lockFile), syncPath: jest.fn(actual.syncPath) };
});

let dir: string;
beforeEach(() => {
  dir = mkdtempSync(join(tmpdir(), 'claims-'));
});
afterEach(() => rmSync(dir, { recursive: true, force: true }));

test('concurrent saves do not treat each other as dead, and leave no files', async () => {
  const saves = Array.from({ length: 8 }, async () => {
    for (let k = 0; k < 10; ++k) await finish(await begin(dir, 'export'));
  });
  await Promise.all(saves);
  expect(readdirSync(dir)).toEqual([]);
});

test('a claim deleted by another save before its lock is created again', async () => {
  const claims = () => readdirSync(dir).filter((name) => name.startsWith('.save-'));
  let first: string | undefined;
  jest.mocked(files.lockFile).mockImplementationOnce(async () => {
    first = claims()[0];
    return false;
  });
  jest.mocked(files.syncPath).mockImplementation(async (path) => {
    if (first && path.endsWith(first)) unlinkSync(path);
    return jest.requireActual('../../lib/runtime/file.js').syncPath(path);
  });
  const draft = await begin(dir, 'export');
  expect(claims()).toHaveLength(1);
  expect(claims()[0]).not.toBe(first);
  await finish(draft);
  expect(readdirSync(dir)).toEqual([]);
});

test('leftovers of a killed save are deleted, and no foreign file is', async () => {
  const outer = await begin(dir, 'weights');
  for (const tag of ['first', 'second']) {
    const inner = await begin(outer.folder, tag);
    writeFileSync(join(inner.folder, 'model.safetensors'), 'half of');
    await inner.claim.leave();
  }
  writeFileSync(join(outer.folder, 'config.json'), '{}');
  await outer.claim.leave();
  const other = await begin(dir, 'weights');
  const inner = await begin(other.folder, 'export');
  writeFileSync(join(inner.folder, 'notes.txt'), 'mine');
  await inner.claim.leave();
  await other.claim.leave();
  await finish(await begin(dir, 'export'));
  const left = readdirSync(dir, { recursive: true, withFileTypes: true });
  const files = left.filter((entry) => entry.isFile() && !entry.name.startsWith('.save-'));
  expect(files.map(({ name }) => name)).toEqual(['notes.txt']);
  expect(readdirSync(dir)).toHaveLength(2);
});
