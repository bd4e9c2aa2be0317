// Tests that foreign files next to, inside and above every path of a command or a save never
// change.
import { spawnSync } from 'node:child_process';
import {
  chmodSync,
  cpSync,
  lstatSync,
  mkdirSync,
  mkdtempSync,
  readdirSync,
  readFileSync,
  readlinkSync,
  rmSync,
  symlinkSync,
  utimesSync,
  writeFileSync,
} from 'node:fs';
import { tmpdir } from 'node:os';
import { dirname, join } from 'node:path';

import { consolidate } from '../../lib/checkpoint/index.js';
import { type Engine, initialize } from '../../lib/index.js';
import { renameExclusive } from '../../lib/runtime/file.js';
import { tinyConfig, tinyModel } from '../e2e/tiny-training.js';
import { content, save, valuesOf } from './content.js';

const HOOK = join(__dirname, '..', 'support', 'run-typescript.cjs');
const CLI = join(__dirname, '..', '..', 'lib', 'launch', 'cli.ts');

let root: string;
let dir: string;
beforeEach(() => {
  root = mkdtempSync(join(tmpdir(), 'ds-canaries-'));
  dir = join(root, 'work', 'checkpoints');
  mkdirSync(dir, { recursive: true });
  for (const place of [root, dirname(dir), dir]) {
    writeFileSync(join(place, 'canary.txt'), `in ${place}`);
    mkdirSync(join(place, 'canaries', 'empty'), { recursive: true });
    writeFileSync(join(place, 'canaries', 'notes.md'), 'mine');
    symlinkSync('canary.txt', join(place, 'link'));
  }
});
afterEach(() => rmSync(root, { recursive: true, force: true }));

/** Every path under `place` with its content. */
function treeOf(place: string): Map<string, string> {
  const tree = new Map<string, string>();
  for (const name of readdirSync(place, { recursive: true }) as string[]) {
    const path = join(place, name);
    const status = lstatSync(path);
    const kind = status.isSymbolicLink() ? `-> ${readlinkSync(path)}` : status.isFile() ? '' : '/';
    tree.set(name, kind || readFileSync(path, 'base64'));
  }
  return tree;
}

/** Runs `body`, and checks that all files from before still exist unchanged. */
async function expectUnharmed(body: () => unknown): Promise<void> {
  const before = treeOf(root);
  await body();
  const after = treeOf(root);
  for (const [name, what] of before) expect([name, after.get(name)]).toEqual([name, what]);
}

function refusal(message: RegExp, code = 'DS_CHECKPOINT') {
  return expect.objectContaining({ code, message: expect.stringMatching(message) });
}

/** `ds consolidate` as a user types it in the folder `cwd`. */
function command(cwd: string, ...words: string[]) {
  const env = { ...process.env, DS_NUM_THREADS: '1' };
  const args = ['-r', HOOK, CLI, 'consolidate', ...words];
  return spawnSync(process.execPath, args, { cwd, env, encoding: 'utf8' });
}

describe('a tag with the name of other files', () => {
  test.each<[string, (path: string) => void, RegExp]>([
    ['a file', (path) => writeFileSync(path, 'mine'), /src: expected .*got a file\./],
    ['an empty folder', (path) => mkdirSync(path), /got an empty folder/],
    [
      'a folder',
      (path) => cpSync(join(dir, 'canaries'), path, { recursive: true }),
      /empty, notes/,
    ],
    ['a link', (path) => symlinkSync('canaries', path), /got a symbolic link/],
    ['a dangling link', (path) => symlinkSync('nowhere', path), /got a symbolic link/],
  ])('%s', async (_name, make, message) => {
    make(join(dir, 'src'));
    const before = readdirSync(dir);
    await expectUnharmed(async () => {
      await expect(save(dir, 'src', content(1))).rejects.toEqual(refusal(message));
    });
    expect(readdirSync(dir)).toEqual(before);
    await expectUnharmed(() => save(dir, 'other', content(1)));
  });

  test('a checkpoint with a file of the user, or with one in place of the manifest', async () => {
    await save(dir, 't', content(1));
    writeFileSync(join(dir, 't', 'eval.json'), '{}');
    await expectUnharmed(async () => {
      const saving = save(dir, 't', content(2));
      await expect(saving).rejects.toEqual(refusal(/a checkpoint with eval.json in it besides/));
    });
    rmSync(join(dir, 't', 'eval.json'));
    writeFileSync(join(dir, 't', 'manifest.json'), '{"mine": true}');
    await expectUnharmed(async () => {
      await expect(save(dir, 't', content(2))).rejects.toEqual(refusal(/a folder with manifest/));
    });
  });

  test('retention keeps a checkpoint that contains a file of the user, with a notice', async () => {
    await save(dir, 'a', content(1));
    writeFileSync(join(dir, 'a', 'eval.json'), '{}');
    await save(dir, 'b', content(2));
    const warn = jest.spyOn(process, 'emitWarning').mockImplementation(() => {});
    await save(dir, 'c', content(3), { keepLast: 1 });
    const [text] = warn.mock.calls[0] as unknown as [string];
    warn.mockRestore();
    expect(text).toMatch(/keepLast did not delete.*\/a: .*eval\.json/);
    expect(readdirSync(join(dir, 'a'))).toContain('eval.json');
    expect((await valuesOf(dir, 'a')).w?.[0]).toBe(1);
    expect(readdirSync(dir).sort()).toEqual(['a', 'c', 'canaries', 'canary.txt', 'latest', 'link']);
  });
});

test('latest is replaced only if it contains a tag', async () => {
  const path = join(dir, 'latest');
  for (const make of [
    () => writeFileSync(path, 'my latest notes\nare here'),
    () => mkdirSync(path),
    () => symlinkSync('canary.txt', path),
  ]) {
    make();
    await expectUnharmed(async () => {
      await expect(save(dir, 't', content(1))).rejects.toEqual(refusal(/latest: expected nothing/));
    });
    rmSync(path, { recursive: true });
  }
  writeFileSync(path, 'global_step10');
  await save(dir, 't', content(1));
  expect(readFileSync(path, 'utf8')).toBe('t');
});

test('hidden names that resemble temporary files are neither deleted nor in the way', async () => {
  const hex = '0123456789abcdef0123456789abcdef';
  for (const kind of ['.tmp-t', '.old-t', '.gone-t', '.latest', '.save']) {
    mkdirSync(join(dir, `${kind}-mine`));
    mkdirSync(join(dir, `${kind}-${hex}`));
    writeFileSync(join(dir, `${kind}-${hex}`, 'notes'), 'mine');
    for (const name of [`${kind}-notes`, `${kind}-${hex.replaceAll('0', 'f')}`]) {
      writeFileSync(join(dir, name), '{"owner": "me"}');
      utimesSync(join(dir, name), 0, 0);
    }
  }
  await expectUnharmed(() => save(dir, 't', content(1)));
  await expectUnharmed(() => save(dir, 'u', content(2), { keepLast: 1, saveLatest: false }));
  await expectUnharmed(() => consolidate(dir, join(dir, 'out')));
});

test('other files in the folder of a dead save are kept', async () => {
  const { Claim } = await import('../../lib/checkpoint/claim.js');
  const claim = await Claim.take(dir);
  await claim.leave();
  const folder = join(dir, `.tmp-t-${claim.owner}`);
  mkdirSync(folder);
  writeFileSync(join(folder, 'notes.md'), 'mine');
  writeFileSync(join(folder, 'manifest.json'), 'half');
  await save(dir, 't', content(1));
  expect(readdirSync(folder)).toEqual(['notes.md']);
  await save(dir, 't', content(1));
});

test('of two concurrent saves of one tag, one complete checkpoint remains', async () => {
  const saves = Array.from({ length: 8 }, (_, n) => save(dir, 't', content(n)));
  await expectUnharmed(() => Promise.all(saves));
  const { w, 'w.fp32': master } = await valuesOf(dir, 't');
  expect(w).toEqual(master);
  expect(readdirSync(dir).filter((name) => name.startsWith('.'))).toEqual([]);
});

describe('ds consolidate', () => {
  beforeEach(() => save(dir, 't', content(1)));

  test.each<[string, string, RegExp]>([
    ['the empty path', '', /expected the path of a folder, got "".*Check that the variable/],
    ['a missing folder and up again', 'missing/..', /got a folder that contains \S+\./],
    ['the folder itself', '.', /got a folder that contains/],
    ['the folder above', '..', /got a folder that contains/],
    ['a file', 'canary.txt', /got a file/],
    ['a link', 'link', /got a link or a device/],
    ['the checkpoints', 'checkpoints', /got a folder that contains/],
    ['a checkpoint', 'checkpoints/t', /got a folder that contains/],
  ])('%s as the folder to make is refused', async (_name, out, message) => {
    await expectUnharmed(() => {
      const { status, stderr } = command(dirname(dir), 'checkpoints', out);
      expect([status, stderr]).toEqual([2, expect.stringMatching(message)]);
    });
  });

  test('the root of the file system, as a function', async () => {
    await expect(consolidate(dir, '/')).rejects.toEqual(
      refusal(/^\/: .*got a folder that contains/, 'DS_ARGUMENT'),
    );
  });

  test('an empty folder is filled, not replaced; a second time it is refused', async () => {
    const out = join(root, 'given');
    mkdirSync(out);
    chmodSync(out, 0o710);
    const { ino } = lstatSync(out);
    await expectUnharmed(() => consolidate(dir, out));
    expect(lstatSync(out)).toMatchObject({ ino, mode: expect.any(Number) });
    expect(lstatSync(out).mode & 0o777).toBe(0o710);
    expect(readdirSync(out)).toEqual(['model.safetensors']);
    await expectUnharmed(async () => {
      await expect(consolidate(dir, out)).rejects.toEqual(refusal(/model.saf/, 'DS_ARGUMENT'));
    });
  });

  test('missing parent folders are created, and no temporary files remain', async () => {
    const out = join(root, 'a', 'b', 'hf');
    await expectUnharmed(() => consolidate(dir, out));
    expect(readdirSync(dirname(out))).toEqual(['hf']);
  });
});

describe('save16bitModel', () => {
  let engine: Engine;
  beforeEach(async () => {
    const options = { precision: 'bf16', offload: false } as const;
    const config = tinyConfig(options);
    ({ engine } = await initialize({ model: tinyModel(), config, device: 'cpu' }));
  });
  afterEach(() => engine.destroy());

  test('replaces weights, and nothing else', async () => {
    await expectUnharmed(() => engine.save16bitModel(dir));
    await engine.save16bitModel(dir);
    for (const name of ['canary.txt', 'canaries', 'link']) {
      await expectUnharmed(async () => {
        const saving = engine.save16bitModel(dir, name);
        await expect(saving).rejects.toEqual(refusal(/nothing of this name, or a safetensors/));
      });
    }
    expect(readdirSync(dir).filter((name) => name.startsWith('.'))).toEqual([]);
  });

  test.each(['', 'a\0b', 5 as unknown as string])('the path %j is refused', async (path) => {
    const refused = refusal(/expected the path of a folder/, 'DS_ARGUMENT');
    await expect(engine.saveCheckpoint(path)).rejects.toEqual(refused);
    await expect(engine.save16bitModel(path)).rejects.toEqual(refused);
  });
});

test('a rename without replacement replaces no file and no folder', async () => {
  const from = join(dir, 'from');
  mkdirSync(from);
  mkdirSync(join(dir, 'free'));
  await expectUnharmed(async () => {
    for (const name of ['canary.txt', 'canaries', 'free', 'link', 'from']) {
      expect(await renameExclusive(from, join(dir, name))).toBe(false);
    }
  });
  expect(await renameExclusive(from, join(dir, 'to'))).toBe(true);
  expect(readdirSync(dir)).toContain('to');
  const missing = renameExclusive(join(dir, 'no'), join(dir, 'x'));
  await expect(missing).rejects.toEqual(refusal(/rename .*no: .*No such file/, 'DS_IO'));
});

test('files of a checkpoint have the mode that the umask leaves', async () => {
  const umask = process.umask(0o002);
  try {
    await save(dir, 't', content(1));
  } finally {
    process.umask(umask);
  }
  for (const name of ['', ...readdirSync(join(dir, 't'))]) {
    const { mode } = lstatSync(join(dir, 't', name));
    expect([name, (mode & 0o777).toString(8)]).toEqual([name, name === '' ? '775' : '664']);
  }
});
