// Tests the offsets of parameters in a unit, and the ranges of parameters in a window.

import { wholeRegion } from '../../lib/runtime/box.js';
import { cpu } from '../../lib/runtime/device.js';
import { held, Tensor } from '../../lib/tensor/index.js';
import { adoptModel } from '../../lib/zero/flatten-model.js';
import { clipGroups, fragmentsOf, layoutUnit, shardOf } from '../../lib/zero/layout.js';
import { broadcastValues } from '../../lib/zero/wire.js';

/** a and c in group 0, b in group 1: a at 0, c at 64, b at 256, gaps behind each, 512 in all. */
const layout = layoutUnit(
  [
    { name: 'a', shape: [10], group: 0 },
    { name: 'b', shape: [65], group: 1 },
    { name: 'c', shape: [3, 64], group: 0 },
  ],
  { shards: 4 },
);

test('parameters of a group are adjacent, and shards are aligned', () => {
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
const clip = (offset: number, numel: number) =>
  clipGroups(layout, { offset, numel }).map(({ group, places, ...range }) => [
    group,
    range.offset,
    range.numel,
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
  expect(clip(offset, numel)).toEqual(groups);
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

describe('initial values', () => {
  const device = cpu();
  /** Adopts a unit with one parameter [4, 25] in two shards of 64; returns what was read. */
  function adoptUnit(isStored: boolean, shardsWeights: boolean, rank: 0 | 1, shape = [4, 25]) {
    const layout = layoutUnit([{ name: 'p', shape, group: 0 }], { shards: 2 });
    const log: unknown[] = [];
    const weights = held(() => Tensor.empty([128], 'f32', device));
    const parameter = {
      stored: isStored ? {} : null,
      writeInitial(values: Tensor, from: number) {
        log.push(['read', values.shape, from]);
        const numbers = Float32Array.from({ length: values.numel }, (_, i) => from + i);
        values.buffer.write(4 * values.offset, numbers);
      },
    };
    const unit = {
      layout,
      weights,
      dtype: 'f32',
      device,
      parameterOf: () => parameter,
      adoptParameter: (entry: { name: string }) => log.push(`own ${entry.name}`),
    };
    const shard = { unit, range: { offset: 64 * rank, numel: 64 } };
    const stage = {
      shardsWeights,
      partitions: [],
      frozen: [shard],
      prepareUnit: (one: unknown) => log.push(one === unit ? 'adopting' : 'other'),
      adoptShard: (one: unknown) => log.push(one === shard ? 'adopted' : 'other'),
    };
    const state = { synchronize: () => log.push('synchronize') };
    const group = {
      rank: 0,
      size: 2,
      broadcast(values: { shape: readonly number[] }) {
        log.push(['broadcast', values.shape]);
        return { wait() {} };
      },
    };
    adoptModel(stage as never, state as never, () => [group as never]);
    const found = (weights.toArray() as number[]).slice(0, 100);
    weights.release();
    return { log, found };
  }
  const count = Array.from({ length: 100 }, (_, i) => i);

  test.each([0, 1] as const)('of a file are read by rank %i, its own part if sharded', (rank) => {
    const { log, found } = adoptUnit(true, true, rank);
    const [from, size] = rank === 0 ? [0, 64] : [64, 36];
    expect(log).toEqual(['adopting', ['read', [size], from], 'own p', 'adopted', 'synchronize']);
    expect(found.slice(from, from + size)).toEqual(count.slice(from, from + size));
  });

  test('of a file are read whole without shards, in their shape', () => {
    const { log, found } = adoptUnit(true, false, 1);
    expect(log[1]).toEqual(['read', [4, 25], 0]);
    expect(found).toEqual(count);
  });

  test('of a rank go to all ranks', () => {
    const { log, found } = adoptUnit(false, true, 1);
    expect(log.slice(1, 3)).toEqual([
      ['read', [4, 25], 0],
      ['broadcast', [4, 25]],
    ]);
    expect(found).toEqual(count);
  });

  test('of a parameter of other ranks are not read', () => {
    const { log } = adoptUnit(true, true, 1, [64]);
    expect(log).toEqual(['adopting', 'own p', 'adopted', 'synchronize']);
  });

  test('of a single rank stay there', () => {
    const values = held(() => Tensor.empty([4], 'f32', device));
    const broadcast = jest.fn(() => ({ wait() {} }));
    const group = (size: number) => ({ rank: 0, size, broadcast }) as never;
    broadcastValues(group(1), values);
    expect(broadcast).not.toHaveBeenCalled();
    broadcastValues(group(2), values, 1);
    expect(broadcast).toHaveBeenCalledWith(expect.objectContaining({ shape: [4] }), 1, {
      stream: device.compute,
      purpose: 'values of one rank',
    });
    values.release();
  });
});

test('groups are in the order of their numbers, whatever comes first', () => {
  const { entries, groups } = layoutUnit([
    { name: 'late', shape: [1], group: 2 },
    { name: 'first', shape: [1], group: 0 },
    { name: 'next', shape: [1], group: 1 },
  ]);
  expect(groups.map(({ group }) => group)).toEqual([0, 1, 2]);
  expect(entries.map(({ name }) => name)).toEqual(['first', 'next', 'late']);
});
