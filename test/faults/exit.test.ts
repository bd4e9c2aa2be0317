// Tests that a process never crashes if it ends in any way while threads of the addon work.
import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { type FileEngineName, fileEngineName } from '../../lib/runtime/file.js';
import { runRanks } from '../comm/ranks.js';
import { random } from '../support/random.js';
import { limit, times } from '../support/times.js';
import type { Ending, ExitJob } from './exit-process.js';

const endings: readonly Ending[] = ['exit', 'throw', 'return', 'terminate', 'signal'];
/** Kernels and containers may lack io_uring. */
const engines: readonly FileEngineName[] = [...new Set(['threads' as const, fileEngineName()])];
const JOBS = times(5, 100);
const RANKS = 2;
const PATIENCE_MS = limit(JOBS, 60_000);

test(
  `${JOBS * RANKS} processes end in the midst of collectives, transfers and tasks`,
  async () => {
    for (let i = 0; i < JOBS; ++i) {
      const root = mkdtempSync(join(tmpdir(), 'ds-exit-'));
      const ending = endings[i % endings.length] as Ending;
      const engine = engines[i % engines.length] as FileEngineName;
      const job: ExitJob = { ending, engine, root, milliseconds: random() * 30 };
      const results = await runRanks('../faults/exit-process', RANKS, { job });
      rmSync(root, { recursive: true, force: true });
      for (const { code, signal, report, stderr } of results) {
        const options = { ...job, code, signal, report, stderr };
        // If two ranks end at different times, one may get the error that the other is gone.
        const isOwn = ending === 'signal' && signal === 'SIGTERM';
        const isCalm = isOwn || code === 0 || code === 3;
        // The error may come even before its own work has started.
        const isLate = code === 3 && /^DsError: .*\b(ended|left)\b/.test(stderr);
        const words = /terminate called|Assertion|FATAL/.test(stderr);
        expect({ ...options, isCalm, words }).toEqual({
          ...options,
          report: isLate ? report : 'under way',
          isCalm: true,
          words: false,
        });
      }
    }
  },
  PATIENCE_MS,
);
