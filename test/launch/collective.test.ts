// Ranks that `ds` and its stand-ins start meet in a job and compute together.
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';

import { findFreePort } from '../../lib/launch/addresses.js';
import { DS, Run } from './jobs.js';

const ROOT = join(__dirname, '..', '..');
const HOOK = join(ROOT, 'test', 'support', 'run-typescript.cjs');

/** Adds the numbers 1, 2, ... of the ranks; rank FAIL throws instead of taking part. */
const SCRIPT = `
require(${JSON.stringify(HOOK)});
const { initDistributed, Tensor } = require(${JSON.stringify(join(ROOT, 'lib', 'index.ts'))});
(async () => {
  const job = await initDistributed({ timeout: 0.5 });
  if (process.argv.includes('--fail=' + job.rank)) throw new Error('bad luck');
  const sum = Tensor.from([job.rank + 1]);
  job.world.allReduce(sum).synchronize();
  console.log('sum ' + sum.toArray() + ' of ' + job.worldSize);
  await job.destroy();
})();`;

let dir: string;
let runs: Run[];
beforeEach(() => {
  dir = mkdtempSync(join(tmpdir(), 'ds-collective-'));
  writeFileSync(join(dir, 'sum.js'), SCRIPT);
  runs = [];
});
afterEach(async () => {
  for (const run of runs) await run.whenGone();
  rmSync(dir, { recursive: true });
});

function noteRun(run: Run): Run {
  runs.push(run);
  return run;
}

const start = (args: string[], env: Record<string, string> = {}) =>
  noteRun(new Run([...DS, ...args], dir, env));
const startNode = (args: string[], env: Record<string, string>) =>
  noteRun(new Run(args, dir, { CUDA_VISIBLE_DEVICES: '', ...env }));

test('ds starts two processes on the CPU, which exchange data', async () => {
  const outcome = await start(['-q', '--num_procs', '2', 'sum.js']).finished;
  expect(outcome).toMatchObject({ code: 0, stdout: 'sum 3 of 2\n', stderr: '' });
});

test('a rank that throws ends the rank that waits for it, and the job has its exit code', async () => {
  const { code, stderr } = await start(['--num_procs', '2', 'sum.js', '--fail=1']).finished;
  expect(code).toBe(1);
  expect(stderr).toContain('ds: rank 1 failed first: exit code 1.');
  expect(stderr).toContain('  Error: bad luck');
});

test('two nodes without ssh share a secret and an address', async () => {
  const port = String(await findFreePort('127.0.0.1'));
  const meeting = ['--master_addr', '127.0.0.1', '--master_port', port];
  const nodes = ['0', '1'].map((rank) =>
    start(['--num_procs', '1', '--num_nodes', '2', '--node_rank', rank, ...meeting, 'sum.js'], {
      DS_JOB_SECRET: 'shared by hand',
    }),
  );
  for (const { finished } of nodes) {
    expect(await finished).toMatchObject({ code: 0, stdout: 'sum 3 of 2\n' });
  }
});

test('ranks started by srun need no launcher', async () => {
  const step = {
    SLURM_STEP_ID: '0',
    SLURM_STEP_NUM_TASKS: '2',
    SLURM_STEP_NODELIST: '127.0.0.1',
    DS_JOB_SECRET: 'shared by hand',
    MASTER_PORT: String(await findFreePort('127.0.0.1')),
  };
  const ranks = ['0', '1'].map((rank) =>
    startNode(['sum.js'], { ...step, SLURM_PROCID: rank, SLURM_LOCALID: rank }),
  );
  for (const { finished } of ranks) {
    expect(await finished).toMatchObject({ code: 0, stdout: 'sum 3 of 2\n' });
  }
});
