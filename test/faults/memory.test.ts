// Tests that if threads of a rank get no memory, every rank ends with an error and no process
// crashes.
import { execFileSync } from 'node:child_process';
import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';

import { reportsOf, runRanks } from '../comm/ranks.js';
import type { MemoryJob } from './memory-process.js';

let root: string;
let shim: string;
beforeAll(() => {
  root = mkdtempSync(join(tmpdir(), 'ds-memory-faults-'));
  shim = join(root, 'shim.so');
  execFileSync('cc', ['-shared', '-fPIC', '-o', shim, join(__dirname, 'memory-shim.c')]);
});
afterAll(() => rmSync(root, { recursive: true, force: true }));

test.each([
  [
    'ds-watchdog',
    1,
    [/rank 1.*its process ended or its connection/, /a running watchdog for this rank's/],
  ],
  ['ds-store', 0, [/the job's store .*ended or its/, /the job's store .*ended or its/]],
] as const)('%s of rank %i', async (thread, culprit, message) => {
  const armed = join(root, thread);
  const job: MemoryJob = { armed, culprit };
  const environment = {
    LD_PRELOAD: shim,
    DS_FAULT_THREAD: thread,
    DS_FAULT_ARMED: armed,
    DS_FAULT_RANK: String(culprit),
  };
  const reports = reportsOf<string>(
    await runRanks('../faults/memory-process', 2, { job, environment }),
  );
  for (const [rank, pattern] of message.entries()) {
    expect(reports[rank]).toMatch(/^DS_COMM /);
    expect(reports[rank]).toMatch(pattern);
  }
});
