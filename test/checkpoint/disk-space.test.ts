// Tests that a save that does not fit on its disk is refused before it writes.
import { mkdtempSync, readdirSync, rmSync, type StatsFs, statfsSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';

import {
  consolidate,
  type Shard,
  saveCheckpoint,
  writeTogether,
} from '../../lib/checkpoint/index.js';
import * as files from '../../lib/runtime/file.js';
import { Tensor } from '../../lib/tensor/tensor.js';
import { content, contentOf, infos, save } from './content.js';
import { onRanks } from './joined-worlds.js';

jest.mock('node:fs', () => {
  const actual = jest.requireActual('node:fs');
  return { ...actual, statfsSync: jest.fn(actual.statfsSync) };
});
jest.mock('../../lib/runtime/file.js', () => {
  const actual = jest.requireActual('../../lib/runtime/file.js');
  return { ...actual, writeFile: jest.fn(actual.writeFile) };
});

const MIB = 2 ** 20;

let dir: string;
beforeEach(() => {
  dir = mkdtempSync(join(tmpdir(), 'ds-space-'));
  jest.mocked(files.writeFile).mockClear();
});
afterEach(() => {
  jest.mocked(statfsSync).mockReset();
  jest.mocked(statfsSync).mockImplementation(jest.requireActual('node:fs').statfsSync);
  rmSync(dir, { recursive: true });
});

function hasFree(bytes: number, blocks = 1e9): void {
  const status = { bsize: 1024, blocks, bfree: bytes / 1024, bavail: bytes / 1024 } as StatsFs;
  jest.mocked(statfsSync).mockReturnValue(status);
}

/** A tensor "w" with so many bytes. */
function shard(bytes: number, name = 'w'): Shard {
  const values = new Float32Array(bytes / 4);
  return { name, shape: [values.length], tensor: Tensor.from(values) };
}

const refusal = (bytes: string, free: string) =>
  expect.objectContaining({
    code: 'DS_IO',
    op: expect.stringMatching(`^write to ${dir}`),
    expected: `${bytes} of disk`,
    got: `${free} free`,
    hint: expect.stringContaining('Free space'),
  });

async function nothingIsWritten(saving: Promise<unknown>, error: unknown): Promise<void> {
  await expect(saving).rejects.toEqual(error);
  expect(files.writeFile).not.toHaveBeenCalled();
}

test('a checkpoint that does not fit is refused and the previous one stays; a smaller one is written', async () => {
  await save(dir, 't', content(1));
  jest.mocked(files.writeFile).mockClear();
  hasFree(4 * MIB);
  const large = contentOf([shard(2 * MIB)], [shard(3 * MIB, 'w.fp32')]);
  await nothingIsWritten(save(dir, 't', large), refusal('5.0 MiB', '4.0 MiB'));
  expect(readdirSync(dir).sort()).toEqual(['latest', 't']);
  hasFree(5 * MIB);
  await save(dir, 't', large);
});

test('a file system that reports no sizes refuses no save', async () => {
  hasFree(0, 0);
  await save(dir, 't', content(1));
});

test('the bytes of all ranks of a machine are added', async () => {
  hasFree(5 * MIB);
  const ranks = () =>
    onRanks(2, (world) => {
      const { rank } = world;
      const { optimizer, catalog, ...own } = contentOf([], [shard(3 * MIB, `w${rank}.fp32`)]);
      const part = { data: rank, model: 0 };
      return saveCheckpoint(
        { dir, tag: 't', saveLatest: false },
        { ...own, optimizer, catalog, part },
        world,
      );
    });
  const reason = expect.objectContaining({
    code: 'DS_IO',
    expected: '6.0 MiB of disk for 2 ranks',
    got: '5.0 MiB free',
  });
  const rejected = { status: 'rejected', reason };
  expect(await ranks()).toEqual([rejected, rejected]);
  expect(files.writeFile).not.toHaveBeenCalled();
  hasFree(6 * MIB);
  const [first] = await ranks();
  expect(first).toMatchObject({ status: 'fulfilled' });
});

test('exports of whole weights check the free space, to a folder and to a shared file', async () => {
  await save(dir, 't', contentOf([shard(3 * MIB)], []));
  jest.mocked(files.writeFile).mockClear();
  hasFree(2 * MIB);
  const error = refusal('3.0 MiB', '2.0 MiB');
  await nothingIsWritten(consolidate(dir, join(dir, 'out')), error);
  const shards = [shard(3 * MIB)];
  const [result] = await onRanks(1, (world) =>
    writeTogether({ dir, file: 'model.safetensors' }, infos(shards), shards, world),
  );
  expect(result).toEqual({ status: 'rejected', reason: error });
  expect(files.writeFile).not.toHaveBeenCalled();
  expect(readdirSync(dir).sort()).toEqual(['latest', 't']);
});
