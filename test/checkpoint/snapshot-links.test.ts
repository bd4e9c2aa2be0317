// Links in folders of weights: those of a hub snapshot are followed, others are refused.
import { mkdirSync, mkdtempSync, renameSync, rmSync, symlinkSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';

import { openInside } from '../../lib/checkpoint/folder.js';
import { refusal } from '../support/refusal.js';

let root: string;
let snapshot: string;
beforeEach(() => {
  root = mkdtempSync(join(tmpdir(), 'links-'));
  const model = join(root, 'models--org--tiny');
  snapshot = join(model, 'snapshots', 'ab'.repeat(20));
  for (const path of [snapshot, join(model, 'blobs')]) mkdirSync(path, { recursive: true });
  writeFileSync(join(model, 'blobs', 'hash'), 'blob');
  writeFileSync(join(model, 'blobs', 'other'), 'blob');
  writeFileSync(join(root, 'secret'), 'secret');
});
afterEach(() => rmSync(root, { recursive: true, force: true }));

async function read(folder: string, name: string): Promise<string> {
  const file = await openInside(folder, name, { followOwn: true });
  try {
    return await file.text(100);
  } finally {
    await file.close();
  }
}

test('follows a snapshot link to its blob, also through a linked cache', async () => {
  symlinkSync('../../blobs/hash', join(snapshot, 'config.json'));
  expect(await read(snapshot, 'config.json')).toBe('blob');
  const moved = `${root}-moved`;
  renameSync(root, moved);
  symlinkSync(moved, root);
  try {
    expect(await read(snapshot, 'config.json')).toBe('blob');
  } finally {
    rmSync(root);
    renameSync(moved, root);
  }
});

test('follows a link to a file of the same folder', async () => {
  const folder = join(root, 'plain');
  mkdirSync(folder);
  writeFileSync(join(folder, 'a'), 'own');
  symlinkSync('a', join(folder, 'b'));
  expect(await read(folder, 'b')).toBe('own');
});

test.each([
  ['out of the cache', '../../../secret'],
  ['to an absolute path', '/etc/hostname'],
  ['to another part of the model', '../../refs'],
  ['below the blobs', '../../blobs/deep/x'],
  ['to nothing', '../../blobs/gone'],
])('refuses a link %s', async (_name, target) => {
  mkdirSync(join(snapshot, '..', '..', 'blobs', 'deep'));
  writeFileSync(join(snapshot, '..', '..', 'blobs', 'deep', 'x'), 'x');
  symlinkSync(target, join(snapshot, 'config.json'));
  expect(await refusal(() => read(snapshot, 'config.json'))).toMatchObject({
    code: 'DS_CHECKPOINT',
    got: 'a symbolic link',
  });
});

test('refuses a blob that is a link itself', async () => {
  symlinkSync('../../secret', join(snapshot, '..', '..', 'blobs', 'linked'));
  symlinkSync('../../blobs/linked', join(snapshot, 'config.json'));
  expect(await refusal(() => read(snapshot, 'config.json'))).toMatchObject({
    got: 'a symbolic link',
  });
});

test('blobs count for the folder "snapshots" only', async () => {
  const folder = join(root, 'models--org--tiny', 'others', 'x');
  mkdirSync(folder, { recursive: true });
  symlinkSync('../../blobs/hash', join(folder, 'config.json'));
  expect(await refusal(() => read(folder, 'config.json'))).toMatchObject({
    got: 'a symbolic link',
  });
});

test('checkpoints follow no link', async () => {
  symlinkSync('../../blobs/hash', join(snapshot, 'config.json'));
  expect(await refusal(() => openInside(snapshot, 'config.json'))).toMatchObject({
    got: 'a symbolic link',
  });
});
