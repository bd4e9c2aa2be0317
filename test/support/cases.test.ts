// Every file of cases runs on the CPU too, and the GPU runner finds the cases of all.
import { readdirSync, readFileSync } from 'node:fs';
import { basename, join } from 'node:path';
import { cpu, type Device } from '../../lib/runtime/device.js';
import { allCases, caseFiles } from './all-cases.js';
import { whySkipped } from './case.js';

const tests = join(__dirname, '..');

test('the GPU runner finds the cases of every file', () => {
  expect(caseFiles().length).toBeGreaterThan(50);
  expect(allCases().length).toBeGreaterThan(1000);
});

test('a case of several ranks needs as many GPUs, and no more CPUs than there are', () => {
  const ranks = { name: 'ranks', gpus: 64, run() {} };
  const gpu = { kind: 'cuda' } as Device;
  expect([whySkipped(ranks, cpu()), whySkipped(ranks, gpu)]).toEqual([null, 'needs 64 GPUs']);
  const other = { ...ranks, skip: () => 'a reason' };
  expect([whySkipped(other, cpu()), whySkipped(other, gpu)]).toEqual(['a reason', 'needs 64 GPUs']);
  const several = allCases().filter(({ gpus }) => (gpus ?? 1) > 1);
  expect(several.length).toBeGreaterThan(100);
});

test.each(caseFiles())('%s.cases.ts runs in jest', (path) => {
  const folder = join(tests, path, '..');
  const names = readdirSync(folder).filter((name) => name.endsWith('.test.ts'));
  const text = names.map((name) => readFileSync(join(folder, name), 'utf8')).join('\n');
  const imports = [`./${basename(path)}.cases.js`, `./${basename(path)}/index.js`];
  expect(imports.some((item) => text.includes(`from '${item}'`))).toBe(true);
});
