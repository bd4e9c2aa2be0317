// Tests which ranks count which elements, and the memory that ranks share.

import { MeshShape } from '../../lib/comm/mesh-shape.js';
import { countedRanges } from '../../lib/engine/step/step-control.js';
import { assignColumns, assignStageColumns } from '../../lib/engine/step/step-rows.js';
import {
  findAvailableMemory,
  measureRankMemory,
  type RankMemory,
} from '../../lib/plan/rank-memory.js';
import { formatNeeds } from '../../lib/plan/shortages.js';
import { cpu } from '../../lib/runtime/device.js';
import { noGrad, Tensor } from '../../lib/tensor/index.js';

test('columns of stages: adjacent columns of one stage are merged', () => {
  const ranks = [[0], [1, 3], [2]];
  expect(assignStageColumns([0, 0, 1, 2, 2, 0], ranks, 2)).toEqual({
    count: 6,
    ownColumns: [3, 4],
    runs: [
      { offset: 0, numel: 2, ranks: [0] },
      { offset: 2, numel: 1, ranks: [1, 3] },
      { offset: 3, numel: 2, ranks: [2] },
      { offset: 5, numel: 1, ranks: [0] },
    ],
  });
  expect(assignStageColumns([], ranks, 0)).toEqual({ count: 0, ownColumns: [], runs: [] });
  expect(assignStageColumns([7], ranks, 7)).toEqual({
    count: 1,
    ownColumns: [0],
    runs: [{ offset: 0, numel: 1, ranks: [] }],
  });
});

test.each([0, 1])('columns of interleaved stages are in the order of layers: rank %j', (rank) => {
  const parameters = Array.from({ length: 4 }, () => ({}));
  const layers = parameters.map((parameter) => ({ modules: [{ parameters: () => [parameter] }] }));
  const ownStages = [rank, rank + 2];
  const units = ownStages.map((layer) => ({ parameters: [{ parameter: parameters[layer] }] }));
  const rows = [
    [1, 0, 1, 0],
    [0, 1, 0, 1],
  ];
  const world = {
    size: 2,
    rank,
    device: cpu(),
    allGather(counts: Tensor, row: Tensor) {
      expect(row.toArray()).toEqual(rows[rank]);
      noGrad(() => counts.add_(Tensor.from(rows.flat(), { shape: [2, 4] })));
      return { wait() {} };
    },
  };
  const found = assignColumns(
    { layers, starts: [0, 1, 2, 3, 4], ownStages, place: { ranks: 2, rank } } as never,
    units.map((unit) => ({ unit })) as never,
    {
      world,
      normRanks: [],
      tensorGroup: null,
      mesh: { shape: MeshShape.over(2, { pp: 2 }) },
    } as never,
  );
  expect(found).toEqual({
    count: 4,
    ownColumns: [rank, rank + 2],
    runs: [0, 1, 0, 1].map((owner, offset) => ({ offset, numel: 1, ranks: [owner] })),
  });
});

describe('ranges that a rank counts in the norm', () => {
  /** A partition of parameters with these sizes, in order, restricted to the range `counted`. */
  function partition(sizes: readonly number[], counted: { offset: number; numel: number }) {
    let offset = 0;
    const fragments = sizes.map((numel, entry) => {
      const fragment = { entry, offset, numel };
      offset += numel;
      return fragment;
    });
    return { unit: { parameterOf: (entry: number) => entry }, fragments, counted } as never;
  }
  const ranges = (
    sizes: readonly number[],
    localValues: readonly number[],
    counted = { offset: 0, numel: sizes.reduce((a, b) => a + b, 0) },
  ) =>
    countedRanges(partition(sizes, counted), (parameter) =>
      localValues.includes(parameter as never),
    );

  test('counts all memory', () => {
    expect(ranges([3, 4], [0, 1])).toEqual([{ offset: 0, numel: 7 }]);
  });

  test('neighbours are one range, and a gap parts them', () => {
    expect(ranges([3, 4, 5, 6], [0, 1, 3])).toEqual([
      { offset: 0, numel: 7 },
      { offset: 12, numel: 6 },
    ]);
    expect(ranges([3, 4, 5, 6], [1, 2])).toEqual([{ offset: 3, numel: 9 }]);
    expect(ranges([3, 4, 5, 6], [0, 2])).toEqual([
      { offset: 0, numel: 3 },
      { offset: 7, numel: 5 },
    ]);
    expect(ranges([3, 4], [])).toEqual([]);
  });

  test('counts only elements in the counted part', () => {
    expect(ranges([3, 4, 5], [0, 1], { offset: 2, numel: 3 })).toEqual([{ offset: 2, numel: 3 }]);
    expect(ranges([3, 4, 5], [0, 2], { offset: 3, numel: 5 })).toEqual([{ offset: 7, numel: 1 }]);
  });
});

describe('the memory of the rank with the least memory', () => {
  const memoryOf = (machine: string, more: Partial<RankMemory> = {}): RankMemory =>
    ({
      machine,
      device: 100,
      host: 1000,
      hostAtMost: 2000,
      returned: 0,
      disk: 500,
      cores: 8,
      ...more,
    }) as RankMemory;

  test('ranks of a machine share its host memory and disk, including returned memory', () => {
    expect(findAvailableMemory([memoryOf('a')])).toEqual({
      device: 100,
      host: 1000,
      hostAtMost: 2000,
      disk: 500,
    });
    const two = [memoryOf('a', { returned: 40 }), memoryOf('a', { host: 960, returned: 20 })];
    expect(findAvailableMemory(two)).toEqual({
      device: 100,
      host: 510,
      hostAtMost: 1030,
      disk: 250,
    });
  });

  test('the machine with the least counts, and the device with the least', () => {
    const all = [memoryOf('a', { device: 90 }), memoryOf('b', { host: 300, disk: 100 })];
    expect(findAvailableMemory(all)).toEqual({
      device: 90,
      host: 300,
      hostAtMost: 2000,
      disk: 100,
    });
    expect(findAvailableMemory([memoryOf('a', { device: null })]).device).toBeNull();
  });
});

describe('the free memory of a rank', () => {
  const parameter = (kind: string, bytes: number, more: object = {}) => ({
    isMaterialized: true,
    missing: null,
    device: { kind },
    bytes,
    ...more,
  });
  const parameters = [
    parameter('cuda', 100),
    parameter('cuda', 20),
    parameter('cpu', 7),
    parameter('cuda', 1000, { missing: {} }),
    parameter('cuda', 1000, { isMaterialized: false }),
  ];
  const adviceFor = (memory: object, kind = 'cuda') =>
    measureRankMemory(
      { parameters: () => parameters } as never,
      { zero_optimization: { offload_optimizer: { nvme_path: null } } } as never,
      {
        kind,
        name: 'a device',
        info: { name: 'a card' },
        memory: { cap: 0, total: 1000, inUse: 300, ...memory },
      } as never,
    );

  test('of the device: free memory, plus weights that will move away', () => {
    expect(adviceFor({}).device).toBe(1000 - 300 + 120);
    expect(adviceFor({ cap: 500 }).device).toBe(500 - 300 + 120);
    expect(adviceFor({ inUse: 5000 }).device).toBe(1);
    expect(adviceFor({}, 'cpu').device).toBeNull();
    expect(adviceFor({ cap: 500 }, 'cpu').device).toBe(500 - 300 + 7);
  });

  test('of the host: weights in host memory, and cached blocks of the allocator', () => {
    const { reserved, inUse } = cpu().memory;
    expect(adviceFor({}).returned).toBe(7 + Math.max(0, reserved - inUse));
    expect(adviceFor({})).toMatchObject({ disk: 0, deviceName: 'a device', card: 'a card' });
    expect(adviceFor({}).host).toBeLessThanOrEqual(adviceFor({}).hostAtMost);
  });
});

test('the needed memory is listed in its parts, without zeros', () => {
  const GIB = 2 ** 30;
  const text = formatNeeds('host memory', {
    weights: 2 * GIB,
    gradients: 0,
    optimizer: GIB,
  } as never);
  expect(text).toBe('3.0 GiB of host memory (weights 2.0 GiB + optimizer 1.0 GiB)');
});
