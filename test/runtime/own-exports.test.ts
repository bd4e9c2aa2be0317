// What every op goes through exports what it declares and nothing else: another module's value is
// exported as a getter, which makes V8 keep all exports of the module in a hash table, so that each
// use of any of them is a search there instead of a known address (a third of an op's host time).
import { readdirSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import { packageRoot } from '../../lib/runtime/package-root.js';

const FOLDERS = ['lib/runtime', 'lib/tensor', 'lib/tensor/ops'];

/** Doors: only whoever is outside of the room uses them. */
const DOORS = ['index.ts', 'functions.generated.ts'];

/** The values that `source` exports and another module declares. */
function passedOn(source: string): string[] {
  const found: string[] = [];
  for (const [, names = '', from] of source.matchAll(
    /^export (?!type\b)(\*|\{[^}]*\})( from)?/gm,
  )) {
    for (const name of names.replace(/[{}]/g, '').split(',')) {
      const [own = ''] = name.trim().split(' as ');
      if (own === '' || own.startsWith('type ')) continue;
      const isDeclared = new RegExp(`^(export )?(const|let|function|class) ${own}\\b`, 'm');
      if (from || !isDeclared.test(source)) found.push(own);
    }
  }
  return found;
}

test('finds what a module passes on', () => {
  expect(passedOn("export { a, type B } from './b.js';")).toEqual(['a']);
  expect(passedOn("import { a } from './b.js';\nexport { a };")).toEqual(['a']);
  expect(passedOn("export * from './b.js';")).toEqual(['*']);
  expect(passedOn("export type { B } from './b.js';\nfunction a() {}\nexport { a as b };")).toEqual(
    [],
  );
});

test.each(FOLDERS)('modules of %s export their own values alone', (folder) => {
  const path = join(packageRoot(), folder);
  const modules = readdirSync(path).filter((name) => name.endsWith('.ts') && !DOORS.includes(name));
  const offenders = modules.flatMap((name) =>
    passedOn(readFileSync(join(path, name), 'utf8')).map((value) => `${name}: ${value}`),
  );
  expect(offenders).toEqual([]);
});
