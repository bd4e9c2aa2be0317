// How partitions are cut into tiles: sizes, borders, and ranges that stay whole.
import { perBlock, perElement, perParameter } from '../../lib/optim/declared-state.js';
import type { Optimizer } from '../../lib/optim/optimizer.js';
import { cpu } from '../../lib/runtime/device.js';
import { liveTensors } from '../../lib/tensor/tensor.js';
import { clipGroups, layoutUnit } from '../../lib/zero/layout.js';
import type { Partition } from '../../lib/zero/partition.js';
import { allocateFilled } from '../../lib/zero/state/memory.js';
import {
  allocateState,
  createTiles,
  cutEvenly,
  disposeTile,
  isByElement,
  type RangeState,
  stateTensors,
  tileSize,
} from '../../lib/zero/state/tiles.js';

test.each([
  [0, 64],
  [1, 64],
  [64, 64],
  [127, 64],
  [1000, 960],
  [1e9, 1e9],
])('a sub-group of %d elements: tiles of %d', (subGroup, size) => {
  expect(tileSize(subGroup)).toBe(size);
});

test.each([
  [0, 64, []],
  [1, 64, [1]],
  [64, 64, [64]],
  [65, 64, [64, 1]],
  [129, 128, [128, 1]],
  [640, 256, [256, 256, 128]],
  [1280, 1024, [640, 640]],
  [5 * 2 ** 24 - 64, 2 ** 24, [2 ** 24, 2 ** 24, 2 ** 24, 2 ** 24, 2 ** 24 - 64]],
])('%d elements in parts of at most %d', (numel, size, sizes) => {
  const parts = cutEvenly(numel, size);
  expect(parts.map((part) => part.numel)).toEqual(sizes);
  expect(parts.map(({ offset }) => offset)).toEqual(
    sizes.map((_, i) => sizes.slice(0, i).reduce((sum, value) => sum + value, 0)),
  );
});

/** Group 0 has a scalar per parameter, group 1 works by element, group 2 needs parameters whole. */
const optimizer = {
  name: 'Mine',
  declareState: (group: number, shape: readonly number[]) => ({
    momentum: perElement(shape, 0.5),
    ...(group === 0 ? { norm: perParameter([]) } : {}),
  }),
  needsWholeParameters: (group: number): boolean => group === 2,
} as unknown as Optimizer;

function numbers({ range, state, starts }: RangeState): object {
  const [momentum, ends] = [new Float32Array(range.numel), new BigInt64Array(starts.numel)];
  const { buffer, offset } = state.momentum!;
  buffer.read(offset * 4, momentum);
  starts.buffer.read(starts.offset * 8, ends);
  const { group, offset: start, numel, places } = range;
  return {
    group,
    offset: start,
    numel,
    places: places.length,
    momentum,
    starts: Array.from(ends, Number),
  };
}

test('an update is elementwise if every group is', () => {
  const isSo = (...kinds: number[]): boolean => {
    const parameters = kinds.map((group, i) => ({ name: `p${i}`, shape: [64], group }));
    const { groups } = layoutUnit(parameters);
    return isByElement(optimizer, { groups } as unknown as Partition);
  };
  expect([isSo(1), isSo(1, 1), isSo()]).toEqual([true, true, true]);
  expect([isSo(0), isSo(2), isSo(1, 0), isSo(0, 1), isSo(1, 2)]).toEqual(Array(5).fill(false));
});

test('tiles end at block borders', () => {
  const device = cpu();
  const before = liveTensors();
  const blocked = {
    name: 'Mine',
    declareState: (_: number, shape: readonly number[]) => ({
      codes: { ...perElement(shape, 9), dtype: 'u8' as const },
      scale: perBlock(shape, 256),
    }),
  } as unknown as Optimizer;
  const parameters = [600, 300].map((n) => ({ name: `p${n}`, shape: [n], group: 0 }));
  const { groups, entries, gaps, numel } = layoutUnit(parameters, {
    shards: 3,
    blockOf: () => 256,
  });
  expect([entries.map(({ offset }) => offset), numel]).toEqual([[0, 768], 1536]);
  expect(gaps.map(({ offset, numel: size }) => [offset, size])).toEqual([
    [600, 168],
    [1068, 212],
    [1280, 256],
  ]);
  const allocate = allocateFilled.bind(null, device);
  const ranges = allocateState({ groups } as unknown as Partition, blocked, allocate);
  expect(ranges[0]?.state.scale?.shape).toEqual([6]);
  const tiles = createTiles(ranges, blocked, { device, size: 640, allocate });
  const sizes = tiles.map(({ range, state }) => [
    range.offset,
    range.numel,
    ...[state.codes, state.scale].map(
      (tensor) => `${tensor?.dtype} ${tensor?.offset} ${tensor?.numel}`,
    ),
  ]);
  expect(sizes).toEqual([
    [0, 512, 'u8 0 512', 'f32 0 2'],
    [512, 512, 'u8 512 512', 'f32 2 2'],
    [1024, 512, 'u8 1024 512', 'f32 4 2'],
  ]);
  for (const tile of tiles) disposeTile(tile);
  for (const tensor of stateTensors(ranges)) tensor.release();
  expect(liveTensors()).toBe(before);
});

test('parameters of one kind of state lie together, padding keeps that of the last', () => {
  const shapes = [[5, 5], [7], [2, 3], [1]];
  const parameters = shapes.map((shape, i) => ({ name: `p${i}`, shape, group: i < 3 ? 0 : 1 }));
  const kindOf = ({ shape }: { shape: readonly number[] }) => `${shape.length}`;
  const layout = layoutUnit(parameters, { shards: 2, kindOf });
  const [matrices, vector, other] = layout.groups;
  expect(layout.entries.map(({ name }) => name)).toEqual(['p0', 'p2', 'p1', 'p3']);
  expect(matrices).toMatchObject({ group: 0, like: [5, 5], offset: 0, numel: 128 });
  expect(vector).toMatchObject({ group: 0, like: [7], offset: 128, numel: 64 });
  expect(other).toMatchObject({ group: 1, like: [1], offset: 192, numel: 64 });
  const [part] = clipGroups(layout, { offset: 10, numel: 64 });
  expect(part?.places).toMatchObject([
    { name: 'p0', from: 10, offset: 0, numel: 15 },
    { name: 'p2', from: 0, offset: 54, numel: 6 },
  ]);
});

test('a range with per-parameter updates is one tile; other ranges have views of its state', () => {
  const device = cpu();
  const before = liveTensors();
  const parameters = [0, 0, 1, 1, 2].map((group, i) => ({ name: `p${i}`, shape: [100], group }));
  const { groups } = layoutUnit(parameters);
  const allocate = allocateFilled.bind(null, device);
  const ranges = allocateState({ groups } as unknown as Partition, optimizer, allocate);
  ranges[1]?.state.momentum?.buffer.write(192 * 4, new Float32Array(64).fill(7));
  const tiles = createTiles(ranges, optimizer, { device, size: 192, allocate });
  const half = (size: number): Float32Array => new Float32Array(size).fill(0.5);
  const cut = { group: 1, numel: 128, places: 0, starts: [128] };
  expect(tiles.map(numbers)).toEqual([
    { group: 0, offset: 0, numel: 256, places: 2, starts: [0, 128, 256], momentum: half(256) },
    { ...cut, offset: 256, momentum: half(128) },
    { ...cut, offset: 384, momentum: Float32Array.from([...half(64), ...half(64).fill(7)]) },
    { group: 2, offset: 512, numel: 128, places: 1, starts: [0, 128], momentum: half(128) },
  ]);
  for (const tile of tiles) disposeTile(tile);
  for (const tensor of stateTensors(ranges)) tensor.release();
  expect(liveTensors()).toBe(before);
});

test('a range that fits into one tile shares its memory with the tile', () => {
  const device = cpu();
  const { groups } = layoutUnit([{ name: 'p', shape: [100], group: 1 }]);
  const allocate = jest.fn(allocateFilled.bind(null, device));
  const ranges = allocateState({ groups } as unknown as Partition, optimizer, allocate);
  allocate.mockClear();
  const tiles = createTiles(ranges, optimizer, { device, size: 128, allocate });
  expect(tiles.map(({ range }) => range)).toEqual(ranges.map(({ range }) => range));
  expect(allocate).not.toHaveBeenCalled();
  for (const tile of tiles) disposeTile(tile);
  for (const tensor of stateTensors(ranges)) tensor.release();
});
