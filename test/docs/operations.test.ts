// The table of operations in docs/tensors.md lists all operations, and the table below it lists
// absent ones. `npm run gen` writes the first table.
import * as surface from '../../lib/index.js';
import { readPage } from './snippets.js';

const rows = Array.from(
  readPage('docs/tensors.md').matchAll(/^\| ([a-z ]+) \| (.*?) \|/gm),
  ([, , cell = '']) => ({ cell }),
);
const names = rows.flatMap(({ cell }) =>
  Array.from(cell.matchAll(/`([\w.]+)`/g), ([, name = '']) => name),
);

const isThere = (name: string): boolean => name in surface || name in surface.Tensor.prototype;

test('the table has rows', () => {
  expect(rows.length).toBeGreaterThan(10);
  expect(new Set(names).size).toBe(names.length);
  expect(names.length).toBeGreaterThan(140);
});

test.each(names.filter((name) => name !== 'Tensor.from'))('%s is exported', (name) => {
  expect(isThere(name)).toBe(true);
});

const [, absent = ''] = readPage('docs/tensors.md').split('| not here | instead |\n');
const [list = ''] = absent.split('\n\n');
const missing = Array.from(list.matchAll(/^\| (`.*?) \|/gm), ([, cell = '']) => cell).flatMap(
  (cell) => Array.from(cell.matchAll(/`(\w+)`/g), ([, name = '']) => name),
);

test('operations that the page calls missing are missing', () => {
  const camel = missing.map((name) => name.replace(/_(\w)/g, (_, c: string) => c.toUpperCase()));
  expect(camel.length).toBeGreaterThan(30);
  expect(camel.filter(isThere)).toEqual([]);
});
