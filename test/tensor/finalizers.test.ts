// Tests that tensors without a scope are freed even if V8 has lost another registry of the process.
import { spawnSync } from 'node:child_process';
import { join } from 'node:path';

test.each(['tensor', 'graph', 'disposed graph'])(
  'a %s that nobody holds is freed after a registry was collected before its own',
  (lost) => {
    const hook = join(__dirname, '../support/run-typescript.cjs');
    const program = join(__dirname, 'finalizers-process.ts');
    const run = ['--expose-gc', '-r', hook, program, lost];
    const { stdout, stderr } = spawnSync(process.execPath, run, { encoding: 'utf8' });
    expect({ stdout, stderr }).toEqual({ stdout: '0 tensors left\n', stderr: '' });
  },
);
