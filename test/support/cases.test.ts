// Every file of cases runs on the CPU too, and the GPU runner finds the cases of all.
import { readdirSync, readFileSync } from 'node:fs';
import { basename, join } from 'node:path';
import { allCases, caseFiles } from './all-cases.js';

const tests = join(__dirname, '..');

test('the GPU runner finds the cases of every file', () => {
  expect(caseFiles().length).toBeGreaterThan(50);
  expect(allCases().length).toBeGreaterThan(1000);
});

test.each(caseFiles())('%s.cases.ts runs in jest', (path) => {
  const folder = join(tests, path, '..');
  const names = readdirSync(folder).filter((name) => name.endsWith('.test.ts'));
  const text = names.map((name) => readFileSync(join(folder, name), 'utf8')).join('\n');
  const imports = [`./${basename(path)}.cases.js`, `./${basename(path)}/index.js`];
  expect(imports.some((one) => text.includes(`from '${one}'`))).toBe(true);
});
