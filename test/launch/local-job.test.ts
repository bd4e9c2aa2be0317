// Tests jobs on this machine only: the address of rank 0 and the refusal of missing GPUs.
import type { LaunchOptions } from '../../lib/launch/launch-options.js';
import { makeJob } from '../../lib/launch/make-job.js';
import type { Program } from '../../lib/launch/script.js';
import type { GpuProbe } from '../../types/addon.js';

const around = {
  env: {},
  probe: async () => ({ deviceCount: 0, message: '' }) as GpuProbe,
  notice: () => {},
};
const make = (given: Partial<LaunchOptions>) =>
  makeJob(
    { launcher: 'ssh', ...given } as LaunchOptions,
    { file: 'a.js', args: [] } as unknown as Program,
    around,
  );

test('ranks of one node meet at the loopback address and a free port', async () => {
  const { job } = await make({ num_procs: 2 });
  expect(job.masterAddr).toBe('127.0.0.1');
  expect(job.masterPort).not.toBe(29_500);
});

test('a probe without a message leaves no gap before the hint', async () => {
  await expect(make({ num_gpus: 1 })).rejects.toThrow(/\S\sFor the CPU use --num_procs/);
});
