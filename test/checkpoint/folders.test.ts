// Tests how folders are made and small files replaced.
import {
  existsSync,
  mkdirSync,
  mkdtempSync,
  readdirSync,
  readFileSync,
  rmSync,
  symlinkSync,
  writeFileSync,
} from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';

import { makeFolder, requireWritable } from '../../lib/checkpoint/make-folder.js';
import { moveFile, replaceFile } from '../../lib/checkpoint/replace-file.js';

let dir: string;
beforeEach(() => {
  dir = mkdtempSync(join(tmpdir(), 'ds-folders-'));
});
afterEach(() => rmSync(dir, { recursive: true }));

test('creates a folder and its parents, also existing ones', async () => {
  const path = join(dir, 'a', 'b', 'c');
  await makeFolder(path);
  for (const one of [path, join(dir, 'a'), '.', '/']) await makeFolder(one);
  expect(readdirSync(join(dir, 'a', 'b'))).toEqual(['c']);
});

test('several concurrent calls create one folder', async () => {
  const path = join(dir, 'a', 'b', 'c');
  await Promise.all(Array.from({ length: 8 }, () => makeFolder(path)));
  expect(existsSync(path)).toBe(true);
});

test('the error names the first cause, and no call hangs', async () => {
  const file = join(dir, 'file');
  writeFileSync(file, '');
  await expect(makeFolder(file)).rejects.toMatchObject({ code: 'EEXIST' });
  await expect(makeFolder(join(file, 'a'))).rejects.toMatchObject({ code: 'ENOTDIR' });
  await expect(makeFolder(join(dir, 'x'.repeat(300)))).rejects.toMatchObject({
    code: 'ENAMETOOLONG',
  });
  await expect(makeFolder('/proc/none/a')).rejects.toMatchObject({ code: 'ENOENT' });
  expect(readdirSync(dir)).toEqual(['file']);
});

test('checks that a folder is writable before a save, and leaves it empty', async () => {
  await requireWritable(join(dir, 'a', 'b'));
  expect(readdirSync(join(dir, 'a', 'b'))).toEqual([]);
  writeFileSync(join(dir, 'file'), '');
  await expect(requireWritable(join(dir, 'file'))).rejects.toMatchObject({ code: 'DS_IO' });
  await expect(requireWritable('/proc/none')).rejects.toMatchObject({ code: 'DS_IO' });
});

test('a moved file replaces a file, and nothing else', async () => {
  const [from, to] = [join(dir, 'from'), join(dir, 'to')];
  for (const _ of ['new', 'replaced']) {
    writeFileSync(from, _);
    await moveFile(from, to);
    expect([existsSync(from), readFileSync(to, 'utf8')]).toEqual([false, _]);
  }
  writeFileSync(from, 'mine');
  mkdirSync(join(dir, 'folder'));
  symlinkSync(to, join(dir, 'link'));
  for (const [name, got] of [
    ['folder', 'a folder or a device'],
    ['link', 'a symbolic link'],
  ] as const) {
    const refused = { code: 'DS_CHECKPOINT', got };
    await expect(moveFile(from, join(dir, name))).rejects.toMatchObject(refused);
    await expect(replaceFile(join(dir, name), 'x')).rejects.toMatchObject(refused);
  }
  expect(readFileSync(to, 'utf8')).toBe('replaced');
  const below = join(to, 'x');
  await expect(moveFile(from, below)).rejects.toMatchObject({ code: 'DS_IO' });
  await expect(replaceFile(below, 'x')).rejects.toMatchObject({ code: 'DS_IO' });
  expect(readdirSync(dir).sort()).toEqual(['folder', 'from', 'link', 'to']);
});
