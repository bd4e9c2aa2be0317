// Tests the claims of concurrent saves in one folder.
import { mkdtempSync, readdirSync, rmSync, unlinkSync, writeFileSync } from 'node:fs';
import * as promises from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';

import { Claim, clearDead } from '../../lib/checkpoint/claim.js';
import { begin, finish } from '../../lib/checkpoint/commit.js';
import { DsError } from '../../lib/errors.js';
import * as files from '../../lib/runtime/file.js';

jest.mock('../../lib/runtime/file.js', () => {
  const actual = jest.requireActual('../../lib/runtime/file.js');
  return { ...actual, lockFile: jest.fn(actual.lockFile), syncPath: jest.fn(actual.syncPath) };
});

jest.mock('node:fs/promises', () => {
  const actual = jest.requireActual('node:fs/promises');
  return { ...actual, readFile: jest.fn(actual.readFile), statfs: jest.fn(actual.statfs) };
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

describe('the claim of a save that has ended', () => {
  const { readFile, statfs } = jest.requireActual<typeof promises>('node:fs/promises');

  /** Sets the boot ID of this machine (null: unknown) and the type of the file system. */
  function setMachine(boot: string | null, type = 0x6969): void {
    jest.mocked(promises.readFile).mockImplementation((async (path: string, coding: 'utf8') => {
      if (!path.endsWith('boot_id')) return readFile(path, coding);
      if (boot === null) throw new Error('no such file');
      return `${boot}\n`;
    }) as never);
    jest.mocked(promises.statfs).mockImplementation((async () => ({ type })) as never);
  }

  afterEach(() => {
    const { lockFile } = jest.requireActual<typeof files>('../../lib/runtime/file.js');
    jest.mocked(files.lockFile).mockImplementation(lockFile);
    jest.mocked(promises.readFile).mockImplementation(readFile);
    jest.mocked(promises.statfs).mockImplementation(statfs);
  });

  async function isCleared(isEmpty = true): Promise<boolean> {
    const owners: string[] = [];
    await clearDead(dir, async (owner) => {
      owners.push(owner);
      return isEmpty;
    });
    return owners.length > 0;
  }

  async function endedClaim(): Promise<void> {
    await (await Claim.take(dir)).leave();
  }

  // 0x6969: NFS, which keeps its locks for each machine. 0xef53: ext4.
  test.each([
    ['one', 'one', 0x6969, true],
    ['one', 'two', 0x6969, false],
    ['one', 'two', 0xef53, true],
    ['one', null, 0x6969, false],
    [null, null, 0x6969, false],
    [null, null, 0xef53, true],
  ])('of boot %j, read in boot %j on a file system of type %i: cleared %j', async (...given) => {
    const [then, now, type, isDead] = given;
    setMachine(then);
    await endedClaim();
    setMachine(now, type);
    expect(await isCleared()).toBe(isDead);
    expect(readdirSync(dir)).toHaveLength(isDead ? 0 : 1);
  });

  test('stays until its folders are empty', async () => {
    await endedClaim();
    expect(await isCleared(false)).toBe(true);
    expect(readdirSync(dir)).toHaveLength(1);
  });

  test('is not cleared where the file system has no locks, or fails to lock', async () => {
    await endedClaim();
    for (const code of ['DS_IO', 'DS_ARGUMENT'] as const) {
      const error = new DsError({ code, op: 'lock', expected: 'a lock', got: 'none' });
      jest.mocked(files.lockFile).mockRejectedValue(error);
      expect(await isCleared()).toBe(false);
    }
    // A save goes on without a lock, but not after another error.
    await expect(Claim.take(dir)).rejects.toMatchObject({ code: 'DS_ARGUMENT' });
    const error = new DsError({ code: 'DS_IO', op: 'lock', expected: 'a lock', got: 'none' });
    jest.mocked(files.lockFile).mockRejectedValue(error);
    await (await Claim.take(dir)).leave();
  });
});
