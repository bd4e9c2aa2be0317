// Reads from the middle of an entry, folders that cannot be listed, and claims of other boots.
import { mkdtempSync, readdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import * as promises from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';

import { begin, finish } from '../../lib/checkpoint/commit.js';
import { encodeHeader } from '../../lib/checkpoint/header.js';
import { listTags } from '../../lib/checkpoint/index.js';
import { SafetensorsFile } from '../../lib/checkpoint/safetensors-file.js';

jest.mock('node:fs/promises', () => {
  const actual = jest.requireActual('node:fs/promises');
  return { ...actual, statfs: jest.fn(actual.statfs), readdir: jest.fn(actual.readdir) };
});

let dir: string;
beforeEach(() => {
  dir = mkdtempSync(join(tmpdir(), 'ds-edges-'));
});
afterEach(() => rmSync(dir, { recursive: true, force: true }));

test('an entry is read from any of its bytes on', async () => {
  const path = join(dir, 'two.safetensors');
  const { bytes } = encodeHeader([
    { name: 'first', dtype: 'u8', shape: [3] },
    { name: 'second', dtype: 'u8', shape: [5] },
  ]);
  writeFileSync(path, Buffer.concat([bytes, Buffer.from([1, 2, 3, 10, 11, 12, 13, 14])]));
  const file = await SafetensorsFile.open(path);
  const [second] = file.entries.filter(({ name }) => name === 'second');
  const part = new Uint8Array(3);
  if (second) file.readNow(second, 2, part);
  expect([...part]).toEqual([12, 13, 14]);
  await file.close();
});

test('the error of a truncated file has its folder', async () => {
  const path = join(dir, 'short.safetensors');
  const { bytes } = encodeHeader([{ name: 'first', dtype: 'u8', shape: [3] }]);
  for (const length of [4, 20, bytes.length]) {
    writeFileSync(path, bytes.subarray(0, length));
    const message = expect.stringContaining(path);
    await expect(SafetensorsFile.open(path)).rejects.toMatchObject({ message });
  }
});

test('a missing folder and an unreadable one give different errors', async () => {
  await expect(listTags(join(dir, 'none'))).rejects.toMatchObject({ code: 'DS_CHECKPOINT' });
  const unreadable = Object.assign(new Error('EIO: i/o error, scandir'), {
    code: 'EIO',
    syscall: 'scandir',
  });
  jest.mocked(promises.readdir).mockRejectedValueOnce(unreadable);
  await expect(listTags(dir)).rejects.toMatchObject({ code: 'DS_IO' });
});

/** A claim that its save has left, changed by `change`. */
async function leftClaim(change: (statement: Record<string, unknown>) => void): Promise<string> {
  const draft = await begin(dir, 'export');
  await draft.claim.leave();
  const name = readdirSync(dir).find((text) => /^\.save-[0-9a-f]{32}$/.test(text)) as string;
  const statement = JSON.parse(readFileSync(join(dir, name), 'utf8'));
  change(statement);
  writeFileSync(join(dir, name), JSON.stringify(statement));
  return name;
}

test.each<[string, (statement: Record<string, unknown>) => void, boolean]>([
  ['of this boot goes', () => {}, false],
  ['of another boot stays', (item) => Object.assign(item, { boot: 'another' }), true],
  ['without a lock stays', (item) => Object.assign(item, { locked: false }), true],
])('on a network file system a free claim %s', async (_, change, stays) => {
  const NFS = 0x6969;
  const { statfs } = jest.requireActual('node:fs/promises');
  jest.mocked(promises.statfs).mockImplementation((async (path: string) => {
    return { ...(await statfs(path)), type: NFS };
  }) as never);
  const name = await leftClaim(change);
  await finish(await begin(dir, 'other'));
  expect(readdirSync(dir).includes(name)).toBe(stays);
});
