// Tests the offsets of parameters in a unit, and the ranges of parameters in a window.
import { wholeRegion } from '../../lib/runtime/box.js';
import { clipGroups, fragmentsOf, layoutUnit, shardOf } from '../../lib/zero/layout.js';

/** a and c in group 0, b in group 1: a at 0, c at 64, b at 256, gaps behind each, 512 in all. */
const layout = layoutUnit(
  [
    { name: 'a', shape: [10], group: 0 },
    { name: 'b', shape: [65], group: 1 },
    { name: 'c', shape: [3, 64], group: 0 },
  ],
  { shards: 4 },
);

test('groups lie together, and shards are aligned', () => {
  expect(layout.entries.map(({ name, offset, numel }) => [name, offset, numel])).toEqual([
    ['a', 0, 10],
    ['c', 64, 192],
    ['b', 256, 65],
  ]);
  expect(layout.numel).toBe(512);
  expect(layout.gaps).toEqual([
    { offset: 10, numel: 54 },
    { offset: 321, numel: 63 },
    { offset: 384, numel: 128 },
  ]);
  expect(layout.groups.map(({ group, offset, numel }) => [group, offset, numel])).toEqual([
    [0, 0, 256],
    [1, 256, 256],
  ]);
});

test('a unit that fills its shards has no gaps, and an empty one has no elements', () => {
  const full = layoutUnit([{ name: 'a', shape: [4, 64], group: 0 }], { shards: 4 });
  expect(full).toMatchObject({ numel: 256, gaps: [], groups: [{ offset: 0, numel: 256 }] });
  expect(layoutUnit([], { shards: 2 })).toEqual({ entries: [], groups: [], gaps: [], numel: 0 });
});

test('a parameter covers its whole tensor unless it declares a part', () => {
  const whole = { whole: [2, 64], box: { offset: [0, 0], shape: [2, 64] } };
  const part = { whole: [4, 64], box: { offset: [2, 0], shape: [2, 64] } };
  const { entries } = layoutUnit([
    { name: 'a', shape: [2, 64], group: 0 },
    { name: 'b', shape: [2, 64], group: 0, region: part as never },
  ]);
  expect(entries.map(({ region }) => region)).toEqual([wholeRegion([2, 64]), part]);
  expect(wholeRegion([2, 64])).toMatchObject({ whole: whole.whole });
});

/** Ranges of each group and its parameters in a window: [name, from, offset, numel]. */
const clipped = (offset: number, numel: number) =>
  clipGroups(layout, { offset, numel }).map(({ group, places, ...range }) => [
    ...[group, range.offset, range.numel],
    ...places.map((one) => [one.name, one.from, one.offset, one.numel]),
  ]);

test.each([
  [0, 64, [[0, 0, 64, ['a', 0, 0, 10]]]],
  [0, 65, [[0, 0, 65, ['a', 0, 0, 10], ['c', 0, 64, 1]]]],
  [10, 54, [[0, 0, 54]]],
  [100, 50, [[0, 0, 50, ['c', 36, 0, 50]]]],
  [
    200,
    100,
    [
      [0, 0, 56, ['c', 136, 0, 56]],
      [1, 56, 44, ['b', 0, 0, 44]],
    ],
  ],
  [384, 128, [[1, 0, 128]]],
  [512, 0, []],
])('groups from %d on, %d elements', (offset, numel, groups) => {
  expect(clipped(offset, numel)).toEqual(groups);
});

test('the fragments of all shards are the parameters', () => {
  const fragments = [0, 1, 2, 3].flatMap((rank) =>
    fragmentsOf(layout, shardOf(layout.numel, rank, 4)),
  );
  expect(
    fragments.map(({ entry, from, offset, numel }) => [entry.name, from, offset, numel]),
  ).toEqual([
    ['a', 0, 0, 10],
    ['c', 0, 64, 64],
    ['c', 64, 0, 128],
    ['b', 0, 0, 65],
  ]);
});
