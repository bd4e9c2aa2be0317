// Tests that threads which Node cannot start give an error with the system's reason. A loop that
// waits for them must not end the process silently.
import { spawnSync } from 'node:child_process';
import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';

import { startFailure } from '../../lib/runtime/thread.js';

const HOOK = join(__dirname, '..', 'support', 'run-typescript.cjs');
const SCRIPT = join(__dirname, 'refused-thread-process.ts');

test('a refused thread is an error of the loader or of the asynchronous save', () => {
  const dir = mkdtempSync(join(tmpdir(), 'ds-refused-'));
  const node = [process.execPath, '-r', HOOK, SCRIPT, dir];
  const { status, stdout } = spawnSync('sh', ['-c', 'ulimit -n 200 && exec "$@"', 'sh', ...node], {
    encoding: 'utf8',
    timeout: 300_000,
    env: { ...process.env, DS_NUM_THREADS: '1' },
  });
  rmSync(dir, { recursive: true, force: true });
  expect(status).toBe(0);
  const [batches, saved, loading, saving] = JSON.parse(stdout) as string[];
  expect([batches, saved]).toEqual(['8 batches', 'saved']);
  const words = /^DS_LIMIT .*: expected a new thread, got none: .*EMFILE.*ulimit -n/;
  expect(loading).toMatch(words);
  expect(saving).toMatch(words);
});

test('a deleted working directory and other failures keep their own errors', () => {
  const gone = new Error('ENOENT: no such file or directory, uv_cwd');
  expect(startFailure('saveCheckpoint', gone)).toMatchObject({
    code: 'DS_IO',
    message: expect.stringMatching(
      'saveCheckpoint: expected a working directory, got a deleted folder',
    ),
  });
  const other = new Error('of the program');
  expect(startFailure('saveCheckpoint', other)).toBe(other);
});
