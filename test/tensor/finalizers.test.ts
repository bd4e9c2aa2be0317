// The safety net for tensors that no scope owns, in a process where V8 has lost somebody's
// registry.
import { spawnSync } from 'node:child_process';
import { join } from 'node:path';

test('tensors that nobody holds are freed after a registry was collected before its own', () => {
  const hook = join(__dirname, '../support/run-typescript.cjs');
  const program = join(__dirname, 'finalizers-process.ts');
  const { stdout, stderr } = spawnSync(process.execPath, ['--expose-gc', '-r', hook, program], {
    encoding: 'utf8',
  });
  expect({ stdout, stderr }).toEqual({ stdout: '0 tensors left\n', stderr: '' });
});
