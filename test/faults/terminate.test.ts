// A worker that is terminated while its native calls throw takes nothing else down.
import { spawnSync } from 'node:child_process';
import { join } from 'node:path';
import { addonPath } from '../../lib/runtime/addon.js';

test('the process outlives 25 terminated workers', () => {
  const command = [join(__dirname, 'terminate.mjs'), '25', addonPath()];
  const { status, signal, stdout, stderr } = spawnSync(process.execPath, command, {
    encoding: 'utf8',
    timeout: 100_000,
  });
  expect({ status, signal, stdout, stderr }).toMatchObject({
    status: 0,
    signal: null,
    stdout: '25 workers terminated\n',
  });
});
