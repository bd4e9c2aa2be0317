// scripts/measure-sources.mjs measures lib, and finds the modules of a real ZeRO-2 step.
import { execFileSync } from 'node:child_process';
import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { packageRoot } from '../../lib/runtime/package-root.js';

const script = join(packageRoot(), 'scripts/measure-sources.mjs');
const output = execFileSync(process.execPath, [script, '--list'], { encoding: 'utf8' });

const rows = new Map(
  [...output.matchAll(/^\| ([^|]+) \| (\d+) \|$/gm)].map(([, name = '', value]) => [
    name,
    Number(value),
  ]),
);
const row = (start: string): number =>
  [...rows].find(([name]) => name.startsWith(start))?.[1] as number;

const modules = output.split('\n').filter((line) => /^[\w/.-]+\.js$/.test(line));

test('the script prints positive numbers', () => {
  expect(rows.size).toBe(14);
  for (const value of rows.values()) expect(value).toBeGreaterThan(0);
  expect(row('lines of zero')).toBeLessThan(row('hand-written lines'));
  expect(row('files of zero and engine')).toBeLessThan(row('files that backward'));
});

test('lists the modules that a step calls, without ops', () => {
  expect(modules).toHaveLength(row('files that backward'));
  expect(modules).toEqual(expect.arrayContaining(['engine/engine.js', 'zero/stage.js']));
  expect(modules.filter((path) => path.startsWith('tensor/ops/'))).toEqual([]);
});

test("docs/architecture.md names exactly zero's and the engine's files on the path of a gradient", () => {
  const page = readFileSync(join(packageRoot(), 'docs/architecture.md'), 'utf8');
  const path = page.slice(
    page.indexOf('## The path of a gradient'),
    page.indexOf('Other configurations'),
  );
  const named = [...path.matchAll(/`((?:engine|zero)\/[\w/-]+)\.ts`/g)].map(([, file]) => file);
  const called = modules.filter((file) => /^(engine|zero)\/(?!watch\/)/.test(file));
  expect([...new Set(named)].sort()).toEqual(called.map((file) => file.replace('.js', '')).sort());
});

test('counts the imports of the composition root', () => {
  const source = readFileSync(join(packageRoot(), 'lib/engine/setup/build-engine.ts'), 'utf8');
  expect(row('imports of')).toBe(source.match(/^import /gm)?.length);
});
