// A disk without room for the files of a search ends it with an error that names the file.
import fs, { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { basename, join } from 'node:path';

import { autotune } from '../../lib/autotuning/index.js';

let dir: string;
beforeEach(() => {
  dir = mkdtempSync(join(tmpdir(), 'ds-full-'));
});
afterEach(() => {
  jest.restoreAllMocks();
  rmSync(dir, { recursive: true });
});

test.each([
  'profile_model_info.json',
  'exp.json',
  'ds_config.json',
  'stdout.log',
  'stderr.log',
  'cmd.txt',
])(
  'if the disk has no room for %s, the search fails with DS_IO and starts no job',
  async (name) => {
    const path = join(dir, 'ds_config.json');
    const autotuning = { results_dir: join(dir, 'results'), exps_dir: join(dir, 'exps') };
    writeFileSync(path, JSON.stringify({ zero_optimization: { stage: 1 }, autotuning }));
    const { writeFileSync: write } = jest.requireActual<typeof fs>('node:fs');
    jest.spyOn(fs, 'writeFileSync').mockImplementation((file, ...rest) => {
      if (basename(String(file)) === name) throw new Error('ENOSPC: no space left on device');
      write(file, ...rest);
    });
    const run = jest.fn(async () => ({ code: 1, isInterrupted: false }));
    const jobs = { slots: 1, nodes: 1, isRemote: false, run, command: () => '' };
    const request = { args: ['--deepspeed_config', path], known: {}, jobs, print: () => {} };
    await expect(autotune(request)).rejects.toMatchObject({
      code: 'DS_IO',
      expected: 'a writable path',
      op: expect.stringMatching(new RegExp(`^autotuning \\S+/${name}$`)),
      got: 'ENOSPC: no space left on device',
      hint: expect.stringContaining('autotuning.results_dir'),
    });
    expect(run).not.toHaveBeenCalled();
  },
);
