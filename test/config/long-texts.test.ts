// Tests long texts in a process whose patterns have no optimization, as in one with much code.
import { execFileSync } from 'node:child_process';
import { join } from 'node:path';

test('a long text gives a typed error or is read, wherever it stands', () => {
  const hook = join(__dirname, '../support/run-typescript.cjs');
  const program = join(__dirname, 'long-texts-process.ts');
  const flags = ['--no-regexp-optimization', '-r', hook, program];
  const report = JSON.parse(execFileSync(process.execPath, flags, { encoding: 'utf8' }));
  expect(report).toEqual({ failures: [], count: 8 * 12 });
});
