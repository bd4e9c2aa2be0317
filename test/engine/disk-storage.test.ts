// Tests the requests to a disk and the folder that is made for them. A slow disk, or one in memory,
// is named in a warning.
import { existsSync, mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';

import { resolveConfig } from '../../lib/config/index.js';
import { openDiskWeights, openNvmeState } from '../../lib/engine/setup/disk-storage.js';
import { DiskWeights } from '../../lib/zero/state/disk-weights.js';
import { NvmeState } from '../../lib/zero/state/placement/nvme.js';
import { thrownBy } from '../support/refusal.js';

jest.mock('../../lib/zero/state/disk-weights.js', () => ({ DiskWeights: jest.fn() }));
jest.mock('../../lib/zero/state/placement/nvme.js', () => ({ NvmeState: jest.fn() }));

const dir = mkdtempSync(join(tmpdir(), 'ds-disk-storage-'));
afterAll(() => rmSync(dir, { recursive: true }));

interface Given {
  disk?: { fileSystem: string; direct: boolean } | null;
  folder?: string;
  aio?: object;
  section?: object;
}

const FAST = { fileSystem: 'ext4', direct: true };

/** Opens both stores with a disk, and returns their options and the warnings. */
function openStores({ disk = FAST, folder = join(dir, 'a', 'b'), aio = {}, section = {} }: Given) {
  for (const result of [DiskWeights, NvmeState]) {
    jest.mocked(result as new () => object).mockReset();
    jest.mocked(result as new () => object).mockImplementation(() => ({ disk }));
  }
  const offload = { device: 'nvme', nvme_path: folder, ...section };
  const config = resolveConfig(
    {
      train_batch_size: 1,
      bf16: { enabled: true },
      aio,
      zero_optimization: { stage: 3, offload_optimizer: offload, offload_param: offload },
    } as never,
    { worldSize: 1 },
  );
  const warn = jest.spyOn(process, 'emitWarning').mockImplementation(() => {});
  const units = [{ layout: { numel: 256 } }, { layout: { numel: 128 } }];
  const group = { rank: 1, size: 2 };
  try {
    openDiskWeights({ config, units, device: {}, group } as never);
    const state = { config, optimizer: {}, partitions: [], device: {}, group };
    if (disk !== null) openNvmeState(state as never);
    return {
      warnings: warn.mock.calls.map(([text, options]) => [text, options] as const),
      weights: jest.mocked(DiskWeights).mock.calls[0]?.[1] as unknown as Record<string, unknown>,
      state: jest.mocked(NvmeState).mock.calls[0]?.[1] as unknown as Record<string, unknown>,
    };
  } finally {
    warn.mockRestore();
  }
}

test('a fast disk gives no warning, and its folder is created', () => {
  expect(openStores({}).warnings).toEqual([]);
  expect(existsSync(join(dir, 'a', 'b'))).toBe(true);
  // All weights fit into max_in_cpu: there is no disk.
  expect(openStores({ disk: null }).warnings).toEqual([]);
});

test.each<[disk: { fileSystem: string; direct: boolean }, text: RegExp]>([
  [{ fileSystem: 'tmpfs', direct: true }, /: tmpfs is memory, so nothing is saved\. Use a folder/],
  [{ fileSystem: 'ramfs', direct: false }, /: ramfs is memory, so nothing is saved/],
  [{ fileSystem: 'overlay', direct: false }, /: overlay refuses O_DIRECT, .* ext4 or xfs\./],
])('%j is named in a warning of each store', (disk, text) => {
  const { warnings } = openStores({ disk });
  expect(warnings.map(([, options]) => options)).toEqual(
    ['DS_IO', 'DS_IO'].map((code) => ({ type: 'DsWarning', code })),
  );
  const [weights = '', state = ''] = warnings.map(([one]) => String(one));
  expect(weights).toMatch(text);
  expect(weights.startsWith(`Weights in ${join(dir, 'a', 'b')}: `)).toBe(true);
  expect(state.startsWith(`Optimizer state in ${join(dir, 'a', 'b')}: `)).toBe(true);
});

test('the configuration reaches the requests, rounded up to whole sectors', () => {
  const aio = { block_size: 10_000, queue_depth: 5, intra_op_parallelism: 3 };
  const { weights, state } = openStores({ aio, section: { buffer_count: 7 } });
  const requests = { blockBytes: 12_288, depth: 5, checkers: 3, folder: join(dir, 'a', 'b') };
  expect(weights).toMatchObject({
    ...requests,
    label: 'weights of rank 1',
    slots: 7,
    weights: [{ numel: 128 }, { numel: 64 }],
  });
  expect(state).toMatchObject({ ...requests, label: 'optimizer state of rank 1' });
  expect(state.slots).toEqual({ count: 7, readsAhead: true, writesBehind: true });
  const blocking = { pipeline_read: false, pipeline_write: false };
  expect(openStores({ section: blocking }).state.slots).toMatchObject({
    readsAhead: false,
    writesBehind: false,
  });
});

test('the error of a folder that cannot be created names its key', () => {
  const file = join(dir, 'file');
  writeFileSync(file, '');
  const error = thrownBy(() => openStores({ folder: join(file, 'inside') }));
  expect(error).toMatchObject({
    code: 'DS_IO',
    op: `zero_optimization.offload_param.nvme_path ${join(file, 'inside')}`,
    expected: 'a folder, or the permission to create it',
  });
});
