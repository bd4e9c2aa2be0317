// Whether parts make up a tensor: random ways of cutting, with and without something wrong, against
// a count of elements.
import { findFlaw } from '../../lib/checkpoint/tiling.js';
import { type Box, type BoxRange, boxesOf, wholeBox } from '../../lib/runtime/box.js';
import {
  all,
  cut,
  elementsOf,
  randomly,
  randomRange,
  randomShape,
} from '../runtime/box-elements.js';

function countsOf(shape: readonly number[], ranges: readonly BoxRange[]): Map<string, number> {
  const counts = new Map(elementsOf(all(wholeBox(shape))).map((place) => [place, 0]));
  for (const place of ranges.flatMap(elementsOf)) counts.set(place, (counts.get(place) ?? 0) + 1);
  return counts;
}

function check(shape: readonly number[], ranges: readonly BoxRange[]): 'whole' | 'flawed' {
  const counts = countsOf(shape, ranges);
  const flaw = findFlaw(shape, ranges);
  if ([...counts.values()].every((count) => count === 1)) {
    expect(flaw).toBeNull();
    return 'whole';
  }
  expect(flaw).not.toBeNull();
  const count = counts.get(String(flaw?.element)) as number;
  if (flaw?.kind === 'missing') expect(count).toBe(0);
  else expect(count).toBeGreaterThan(1);
  return 'flawed';
}

test('the parts of any split are complete, in any order', () => {
  const random = randomly(11);
  for (let round = 0; round < 2000; ++round) {
    const shape = randomShape(random);
    const parts = cut(random, all(wholeBox(shape)), 1 + random(5));
    const shuffled = parts.sort(() => random(3) - 1);
    expect(check(shape, shuffled)).toBe('whole');
  }
});

test('a missing, extra, moved or enlarged part is reported with its position', () => {
  const random = randomly(12);
  let flawed = 0;
  for (let round = 0; round < 4000; ++round) {
    const shape = randomShape(random);
    const parts = cut(random, all(wholeBox(shape)), 1 + random(5));
    const victim = random(parts.length);
    const change = random(3);
    if (change === 0) parts.splice(victim, 1);
    else if (change === 1) parts.push(randomRange(random, shape));
    else parts[victim] = randomRange(random, shape);
    if (check(shape, parts) === 'flawed') flawed++;
  }
  expect(flawed).toBeGreaterThan(3000);
});

test('tiles that no straight cut divides are accepted', () => {
  const windmill: Box[] = [
    { offset: [0, 0], shape: [1, 2] },
    { offset: [0, 2], shape: [2, 1] },
    { offset: [2, 1], shape: [1, 2] },
    { offset: [1, 0], shape: [2, 1] },
    { offset: [1, 1], shape: [1, 1] },
  ];
  expect(check([3, 3], windmill.map(all))).toBe('whole');
  expect(findFlaw([3, 3], windmill.slice(0, 4).map(all))).toEqual({
    kind: 'missing',
    element: [1, 1],
  });
  const grown = { offset: [1, 1], shape: [2, 1] };
  const flaw = findFlaw([3, 3], [...windmill.slice(0, 4), grown].map(all));
  expect(flaw).toEqual({ kind: 'twice', element: [2, 1] });
});

test('a part in addition to the whole tensor is a duplicate', () => {
  const fullBox = wholeBox([4, 4]);
  const corner = { offset: [2, 2], shape: [2, 2] };
  for (const boxes of [
    [fullBox, corner],
    [corner, fullBox],
  ]) {
    expect(check([4, 4], boxes.map(all))).toBe('flawed');
  }
});

test('scalars and empty tensors are complete with one part', () => {
  const scalar = all(wholeBox([]));
  expect(findFlaw([], [scalar])).toBeNull();
  expect(findFlaw([], [])).toEqual({ kind: 'missing', element: [] });
  expect(findFlaw([], [scalar, scalar])).toEqual({ kind: 'twice', element: [] });
  expect(findFlaw([3, 0], [])).toBeNull();
  expect(findFlaw([3, 0], [all(wholeBox([3, 0]))])).toBeNull();
});

test('a hundred thousand parts of a grid, of ranges and of columns are checked', () => {
  const [rows, columns] = [400, 250];
  const grid = Array.from({ length: rows * columns }, (_, i) =>
    all({ offset: [3 * Math.floor(i / columns), 2 * (i % columns)], shape: [3, 2] }),
  );
  expect(findFlaw([3 * rows, 2 * columns], grid)).toBeNull();
  const flat = grid.map((_, i) => ({ box: wholeBox([rows, columns]), from: i, numel: 1 }));
  expect(findFlaw([rows, columns], flat)).toBeNull();
  const strips = grid.map((_, i) => all({ offset: [0, i], shape: [2, 1] }));
  expect(findFlaw([2, grid.length], strips)).toBeNull();
  expect(boxesOf(strips[5] as BoxRange)).toHaveLength(1);
});

test('more parts than a function call can have arguments are checked', () => {
  const count = 300_000;
  const columns = Array.from({ length: count }, (_, i) => all({ offset: [0, i], shape: [2, 1] }));
  expect(findFlaw([2, count], columns)).toBeNull();
});
