// Tests the compression errors of 1-bit optimizers in a checkpoint. A rank saves its own and reads
// them again, also if the number of ranks has changed.
import { errorCatalog, errorShards, readErrors } from '../../lib/engine/saving/rank-errors.js';
import { wholeRegion } from '../../lib/runtime/box.js';
import { cpu } from '../../lib/runtime/device.js';
import { held, noGrad, Tensor } from '../../lib/tensor/index.js';

const entry = (name: string, shape: number[]) => ({
  name,
  shape,
  region: wholeRegion(shape),
  numel: shape.reduce((a, b) => a * b, 1),
});
const weight = entry('weight', [2, 3]);
const empty = entry('empty', [0]);

interface Given {
  rank?: number;
  size?: number;
  isReplica?: boolean;
  optimizer?: object;
  errors?: object[];
}

/** The parts of an engine that the functions read. */
function engineOf({ rank = 1, size = 2, isReplica = false, errors = [], ...given }: Given) {
  const unit = { layout: { entries: [weight, empty] } };
  return {
    device: cpu(),
    parts: {
      optimizer: given.optimizer ?? { passOf() {} },
      ranks: { dataGroup: { rank, size }, isReplica },
      stage: { partitions: [{ unit }] },
      state: { rankErrors: () => errors },
    },
  } as never;
}

const error = (item: object, name: string, from: number, values: number[]) => ({
  entry: item,
  name,
  from,
  tensor: held(() => Tensor.from(values, { dtype: 'f32' })),
});

test('the catalog has the errors of all ranks, for optimizers that exchange', () => {
  expect(Object.fromEntries(errorCatalog(engineOf({ size: 4 })))).toEqual({
    'weight.worker_error': { dtype: 'f32', shape: [4, 6] },
    'weight.server_error': { dtype: 'f32', shape: [2, 3] },
  });
  expect(errorCatalog(engineOf({ size: 1 })).size).toBe(0);
  expect(errorCatalog(engineOf({ optimizer: {} })).size).toBe(0);
});

test('a rank saves its row, and its part of the error of the average', () => {
  const errors = [
    error(weight, 'worker_error', 0, [1, 2, 3, 4, 5, 6]),
    error(weight, 'server_error', 3, [7, 8, 9]),
    error(empty, 'server_error', 0, []),
  ];
  const shards = errorShards(engineOf({ rank: 1, size: 2, errors }));
  const seen = shards.map(({ tensor, ...rest }) => ({
    ...rest,
    values: (tensor as Tensor).toArray(),
  }));
  expect(seen).toEqual([
    {
      name: 'weight.worker_error',
      shape: [2, 6],
      from: 0,
      values: [1, 2, 3, 4, 5, 6],
      box: { offset: [1, 0], shape: [1, 6] },
    },
    {
      name: 'weight.server_error',
      shape: [2, 3],
      from: 3,
      values: [7, 8, 9],
      box: { offset: [0, 0], shape: [2, 3] },
    },
  ]);
  for (const { tensor } of shards) (tensor as Tensor).release();
});

test('a replica saves no errors, and keeps no memory', () => {
  const { inUse } = cpu().memory;
  const errors = [error(weight, 'worker_error', 0, [1, 2, 3, 4, 5, 6])];
  expect(errorShards(engineOf({ isReplica: true, errors }))).toEqual([]);
  expect(cpu().memory.inUse).toBe(inUse);
});

/** A checkpoint with these tensors: a row of each rank, or the values of a parameter. */
function checkpointOf(saved: Record<string, number[][]>) {
  const infos = Object.entries(saved).map(([name, rows]) => [name, { shape: [rows.length] }]);
  const read = async (
    section: string,
    key: string,
    { box, from }: { box: { offset: number[] }; from: number },
    into: Tensor,
  ) => {
    const row = key.endsWith('worker_error') ? (box.offset[0] as number) : 0;
    const values = (saved[key]?.[row] ?? []).slice(from, from + into.numel);
    expect([section, values.length]).toEqual(['optimizer', into.numel]);
    const tensor = held(() => Tensor.from(values));
    noGrad(() => into.copy_(tensor));
    tensor.release();
  };
  return { tensors: () => new Map(infos as never), read } as never;
}

async function readBack(options: Given, saved: Record<string, number[][]>, expected = true) {
  const kept = [
    error(weight, 'worker_error', 0, [9, 9, 9, 9, 9, 9]),
    error(weight, 'server_error', 3, [9, 9, 9]),
    error(empty, 'worker_error', 0, []),
  ];
  // The functions release their references.
  const localTensors = kept.map(({ tensor }) => tensor.retain());
  await readErrors(engineOf({ ...options, errors: kept }), checkpointOf(saved), expected);
  const values = localTensors.map((tensor) => tensor.toArray());
  for (const tensor of localTensors) tensor.release();
  return values;
}

const rows = [
  [1, 2, 3, 4, 5, 6],
  [10, 20, 30, 40, 50, 60],
];
const saved = { 'weight.worker_error': rows, 'weight.server_error': [[1, 2, 3, 4, 5, 6]] };

test('a rank reads its row again', async () => {
  expect(await readBack({ rank: 1 }, saved)).toEqual([rows[1], [4, 5, 6], []]);
  expect(await readBack({ rank: 0 }, saved)).toEqual([rows[0], [4, 5, 6], []]);
});

test('if the number of ranks has changed, each rank reads the mean', async () => {
  const mean = [5.5, 11, 16.5, 22, 27.5, 33];
  expect(await readBack({ rank: 2, size: 4 }, saved)).toEqual([mean, [4, 5, 6], []]);
});

test('missing or unwanted errors become zero', async () => {
  const zeros = [[0, 0, 0, 0, 0, 0], [0, 0, 0], []];
  expect(await readBack({}, {})).toEqual(zeros);
  expect(await readBack({}, saved, false)).toEqual(zeros);
  const { inUse } = cpu().memory;
  await readBack({}, saved);
  expect(cpu().memory.inUse).toBe(inUse);
});
