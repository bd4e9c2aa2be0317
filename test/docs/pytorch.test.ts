// Tests docs/pytorch.md: its names are exported, its absent names are not, and cases compare every
// operation with PyTorch.
import * as surface from '../../lib/index.js';
import golden from '../golden/operations.json';
import { draws, operations } from '../tensor/pytorch-operations.js';
import { readPage } from './snippets.js';

interface Row {
  section: string;
  there: string[];
  /** Empty if the page marks it as absent. */
  here: string[];
  note: string;
}

const quoted = (cell: string): string[] =>
  Array.from(cell.matchAll(/`([^`]+)`/g), ([, name = '']) => name);

function rowsOf(page: string): Row[] {
  return page.split(/^## /m).flatMap((text) => {
    const section = text.slice(0, text.indexOf('\n'));
    const rows = text.matchAll(/^\| (`.*?) \| (`.*?|no) \| ?(.*?) ?\|$/gm);
    return Array.from(rows, ([, there = '', here = '', note = '']) => {
      return { section, there: quoted(there), here: quoted(here), note };
    });
  });
}

const rows = rowsOf(readPage('docs/pytorch.md'));
const inSection = (section: string): Row[] => rows.filter((row) => row.section === section);
const [named, written] = ['Operations', 'Operations without a name of their own'].map(
  inSection,
) as [Row[], Row[]];

const camel = (name: string): string =>
  name.replace(/_$/, '').replace(/_(\w)/g, (_, letter: string) => letter.toUpperCase());

/** Owners of names by prefix: `nn.Linear`, `x.item`, `init.zeros_`, `add`. */
const owners: Record<string, object[]> = {
  nn: [surface.nn],
  'nn.init': [surface.nn.init],
  init: [surface.nn.init],
  data: [surface.data],
  optim: [surface.optim],
  x: [surface.Tensor.prototype, surface.Tensor.from(0)],
  Tensor: [surface.Tensor],
  model: [surface.nn.Module.prototype],
};

function isThere(name: string, section: string): boolean {
  const at = name.lastIndexOf('.');
  const fallback = section === 'Data' ? [surface.data] : [surface, surface.Tensor.prototype];
  const places = at < 0 ? fallback : (owners[name.slice(0, at)] ?? []);
  return places.some((place) => name.slice(at + 1) in place);
}

test('the page has rows of every kind', () => {
  const sections = new Set(rows.map(({ section }) => section));
  expect(sections.size).toBe(9);
  expect(named.length).toBeGreaterThan(143);
  expect(rows.filter(({ here }) => here.length === 0).length).toBeGreaterThan(30);
  const all = rows.flatMap(({ section, there }) => there.map((name) => `${section}: ${name}`));
  expect(all.length).toBe(new Set(all).size);
});

test('names of the page are exported', () => {
  const dead = rows.flatMap(({ section, here }) =>
    here.filter((name) => !isThere(name, section)).map((name) => `${section}: ${name}`),
  );
  expect(dead).toEqual([]);
});

test('missing operations are missing, and each has a reason', () => {
  const absent = rows.filter(({ here }) => here.length === 0);
  const found = absent.flatMap(({ section, there }) =>
    there.filter((name) => isThere(name, section) || isThere(camel(name), section)),
  );
  expect(found).toEqual([]);
  expect(absent.filter(({ note }) => note === '')).toEqual([]);
});

test('every operation is compared with PyTorch, and every comparison is of a row', () => {
  const names = [...named, ...written].flatMap(({ there }) => there).sort();
  const compared = Object.keys(golden.operations);
  expect(Object.keys(operations).sort()).toEqual(compared.toSorted());
  expect([...compared, ...Object.keys(draws)].sort()).toEqual(names);
});

test('an operation is compared by the name that its row has', () => {
  const wrong = named.filter(({ there: [name = ''], here }) => {
    const text = String((operations[name] ?? draws[name]?.run) as unknown);
    return !here.every((each) => new RegExp(`\\b${each}\\b`).test(text));
  });
  // A function in several rows; its own text names the operation.
  expect(wrong.map(({ there: [name] }) => name)).toEqual([]);
});

/** Functions for transformers of other shapes: mixtures of experts and packed weights. */
const BESIDES = /^(routeTopK|groupRows|groupedLinear|combineRows|choicesOf)$/;
const OWN = [
  'scale',
  'swiglu',
  'concat',
  'Tensor.from',
  'cast',
  'gatedDelta',
  'shortConv',
  'stateSpace',
];

test('every operation of the table of tensors.md has a row', () => {
  const cells = readPage('docs/tensors.md').matchAll(/^\| [a-z ]+ \| (`.*?) \|/gm);
  const [own] = [Array.from(cells, ([, cell = '']) => quoted(cell)).flat()];
  const here = new Set(named.flatMap((row) => row.here));
  const without = own.filter((name) => !BESIDES.test(name) && !here.has(name));
  expect(without.filter((name) => name !== 'seed').sort()).toEqual(OWN.toSorted());
});
