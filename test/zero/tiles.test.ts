// How partitions are cut into tiles: sizes, borders, and ranges that stay whole.
import { perElement, perParameter } from '../../lib/optim/declared-state.js';
import type { Optimizer } from '../../lib/optim/optimizer.js';
import { cpu } from '../../lib/runtime/device.js';
import { liveTensors } from '../../lib/tensor/tensor.js';
import { pinnedFilled } from '../../lib/zero/home/pinned.js';
import { allocateState, type RangeState, stateTensors } from '../../lib/zero/home/range-state.js';
import { cutEvenly, disposeTile, makeTiles, tileSize } from '../../lib/zero/home/tiles.js';
import { layoutUnit } from '../../lib/zero/layout.js';
import type { Partition } from '../../lib/zero/partition.js';

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
    sizes.map((_, i) => sizes.slice(0, i).reduce((sum, one) => sum + one, 0)),
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
    ...{ group, offset: start, numel },
    places: places.length,
    momentum,
    starts: Array.from(ends, Number),
  };
}

test('a range whose update looks at parameters is one tile, another has views of its state', () => {
  const device = cpu();
  const before = liveTensors();
  const parameters = [0, 0, 1, 1, 2].map((group, i) => ({ name: `p${i}`, shape: [100], group }));
  const { groups } = layoutUnit(parameters);
  const allocate = pinnedFilled.bind(null, device);
  const ranges = allocateState({ groups } as unknown as Partition, optimizer, allocate);
  ranges[1]?.state.momentum?.buffer.write(192 * 4, new Float32Array(64).fill(7));
  const tiles = makeTiles(ranges, optimizer, { device, size: 192, allocate });
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
