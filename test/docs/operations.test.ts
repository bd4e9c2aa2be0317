// The table of operations names what there is, all of it, and nothing else.
import * as surface from '../../lib/index.js';
import { readPage } from './snippets.js';

const rows = Array.from(
  readPage('docs/tensors.md').matchAll(/^\| ([a-z ]+) \| (.*?) \|/gm),
  ([, , cell = '']) => ({ cell }),
);
const names = rows.flatMap(({ cell }) =>
  Array.from(cell.matchAll(/`([\w.]+)`/g), ([, name = '']) => name),
);

const functions = Object.keys(surface);
const methods = Object.getOwnPropertyNames(surface.Tensor.prototype).filter(
  (name) => functions.includes(name) && name !== 'device' && name !== 'backward',
);
const isThere = (name: string): boolean => name in surface || name in surface.Tensor.prototype;

test('the table has rows', () => {
  expect(rows.length).toBeGreaterThan(10);
  expect(new Set(names).size).toBe(names.length);
  expect(names.length).toBeGreaterThan(140);
});

test.each(names.filter((name) => name !== 'Tensor.from'))('%s is there', (name) => {
  expect(isThere(name)).toBe(true);
});

test('every function that is a method too is in the table', () => {
  expect(methods.length).toBeGreaterThan(90);
  expect(methods.filter((name) => !names.includes(name))).toEqual([]);
});
