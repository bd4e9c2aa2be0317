// Tests jobs of one node: the address of rank 0, its port, and the refusal of missing GPUs.
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';

import type { LaunchOptions } from '../../lib/launch/launch-options.js';
import { makeJob } from '../../lib/launch/make-job.js';
import type { Program } from '../../lib/launch/script.js';
import type { GpuProbe } from '../../types/addon.js';

const folder = mkdtempSync(join(tmpdir(), 'ds-local-job-'));
afterAll(() => rmSync(folder, { recursive: true }));

const around = {
  env: {},
  probe: async () => ({ deviceCount: 0, message: '' }) as GpuProbe,
  notice: () => {},
};
const make = (options: Partial<LaunchOptions>) =>
  makeJob(
    { launcher: 'ssh', ...options } as LaunchOptions,
    { file: 'a.js', args: [] } as unknown as Program,
    around,
  );

test('ranks of one node use the loopback address and a free port', async () => {
  const { job } = await make({ num_procs: 2 });
  expect(job.masterAddr).toBe('127.0.0.1');
  expect(job.masterPort).not.toBe(29_500);
});

test('a free port of another machine cannot be found', async () => {
  const hostfile = join(folder, 'hosts');
  writeFileSync(hostfile, '192.0.2.1 slots=2\n');
  const { job, here, remote } = await make({ hostfile });
  expect([here, remote]).toEqual([[], [0]]);
  expect(job.masterPort).toBe(29_500);
  expect((await make({ hostfile, master_port: 1234 })).job.masterPort).toBe(1234);
});

test('a probe without a message leaves no gap before the hint', async () => {
  await expect(make({ num_gpus: 1 })).rejects.toThrow(/\S\sFor the CPU use --num_procs/);
});
