// A worker that is terminated while its native calls throw takes nothing else down.
import { spawnSync } from 'node:child_process';
import { join } from 'node:path';
import { addonPath } from '../../lib/runtime/addon.js';
import { limit, times } from '../support/times.js';

const WORKERS = times(25, 500);
const PATIENCE_MS = limit(WORKERS, 3000);

test(
  `the process outlives ${WORKERS} terminated workers`,
  () => {
    const command = [join(__dirname, 'terminate.mjs'), String(WORKERS), addonPath()];
    const { status, signal, stdout, stderr } = spawnSync(process.execPath, command, {
      encoding: 'utf8',
      timeout: PATIENCE_MS,
    });
    expect({ status, signal, stdout, stderr }).toMatchObject({
      status: 0,
      signal: null,
      stdout: `${WORKERS} workers terminated\n`,
    });
  },
  PATIENCE_MS + 10_000,
);
