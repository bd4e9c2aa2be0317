// Tests that modules on the path of every op export only their own declarations. A re-exported
// value is a getter, which makes V8 keep all exports of the module in a hash table. Each use is
// then a search there in place of a known address (a third of an op's host time).
import { readdirSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import { packageRoot } from '../../lib/runtime/package-root.js';

const FOLDERS = ['lib/runtime', 'lib/tensor', 'lib/tensor/ops'];

/** Entry points, which only code outside of the room uses. */
const DOORS = ['index.ts', 'functions.generated.ts'];

/** The re-exported values of `source`. */
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

test('finds re-exports', () => {
  expect(passedOn("export { a, type B } from './b.js';")).toEqual(['a']);
  expect(passedOn("import { a } from './b.js';\nexport { a };")).toEqual(['a']);
  expect(passedOn("export * from './b.js';")).toEqual(['*']);
  expect(passedOn("export type { B } from './b.js';\nfunction a() {}\nexport { a as b };")).toEqual(
    [],
  );
});

test.each(FOLDERS)('modules of %s export only their own values', (folder) => {
  const path = join(packageRoot(), folder);
  const modules = readdirSync(path).filter((name) => name.endsWith('.ts') && !DOORS.includes(name));
  const offenders = modules.flatMap((name) =>
    passedOn(readFileSync(join(path, name), 'utf8')).map((value) => `${name}: ${value}`),
  );
  expect(offenders).toEqual([]);
});
