// Tests a save whose tag other saves keep taking, and a manifest that cannot be read.
import { mkdirSync, mkdtempSync, readdirSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';

import { begin, finish, publish } from '../../lib/checkpoint/commit.js';
import { requireReplaceable } from '../../lib/checkpoint/deletable-files.js';
import * as manifests from '../../lib/checkpoint/manifest.js';
import { DsError } from '../../lib/errors.js';
import * as files from '../../lib/runtime/file.js';

jest.mock('../../lib/runtime/file.js', () => {
  const actual = jest.requireActual('../../lib/runtime/file.js');
  return { ...actual, renameExclusive: jest.fn(actual.renameExclusive) };
});
jest.mock('../../lib/checkpoint/manifest.js', () => {
  const actual = jest.requireActual('../../lib/checkpoint/manifest.js');
  return { ...actual, readManifest: jest.fn(actual.readManifest) };
});

let dir: string;
beforeEach(() => {
  dir = mkdtempSync(join(tmpdir(), 'ds-contended-'));
});
afterEach(() => rmSync(dir, { recursive: true }));

test('a save that is overtaken 100 times by saves of the same tag fails without leftovers', async () => {
  const draft = await begin(dir, 't');
  let turns = 0;
  jest.mocked(files.renameExclusive).mockImplementation(async () => {
    turns += 1;
    if (turns > 1000) throw new Error('the save does not end');
    return false;
  });
  await expect(publish(draft, true)).rejects.toMatchObject({
    code: 'DS_CHECKPOINT',
    op: join(dir, 't'),
    got: '100 saves of this tag by other programs',
  });
  jest.mocked(files.renameExclusive).mockRestore();
  await finish(draft);
  expect(readdirSync(dir)).toEqual([]);
});

test.each(['DS_IO', 'DS_CHECKPOINT'] as const)(
  'a folder whose manifest fails with %s is not replaced',
  async (code) => {
    mkdirSync(join(dir, 't'));
    const error = new DsError({ code, op: 'manifest', expected: 'success', got: 'errno 5' });
    jest.mocked(manifests.readManifest).mockRejectedValueOnce(error);
    // An error of the disk does not show that the folder is of another program.
    const refused = code === 'DS_IO' ? error : { code, got: 'an empty folder' };
    await expect(requireReplaceable(join(dir, 't'))).rejects.toMatchObject(refused);
  },
);
