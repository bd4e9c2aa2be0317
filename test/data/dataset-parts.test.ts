// Tests the samples and errors of Subset, ConcatDataset, randomSplit and TensorDataset.
import { join } from 'node:path';
import {
  ConcatDataset,
  DataLoader,
  type Dataset,
  randomSplit,
  Subset,
  TensorDataset,
  workerDataset,
} from '../../lib/data/index.js';
import { DsError } from '../../lib/errors.js';
import { cpu } from '../../lib/runtime/device.js';
import { liveTensors, scope, Tensor } from '../../lib/tensor/index.js';

const numbers = (length: number, start = 0) => ({ length, get: (i: number) => start + i });
const all = (set: { length: number; get(i: number): unknown }): unknown[] =>
  Array.from({ length: set.length }, (_, i) => set.get(i));

test('Subset, ConcatDataset and randomSplit select the expected samples', () => {
  const both = new ConcatDataset([numbers(3), numbers(0), numbers(2, 10)]);
  expect(all(both)).toEqual([0, 1, 2, 10, 11]);
  const some = new Subset(both, [4, 0, 4]);
  expect(all(some)).toEqual([11, 0, 11]);
  const [batch] = [...new DataLoader(some, { batchSize: 3, shuffle: false })];
  expect(batch?.toArray()).toEqual([11, 0, 11]);
  batch?.dispose();
});

test('random parts hold every sample once, and follow the seed', () => {
  const parts = randomSplit(numbers(10), [0.5, 0.25, 0.25], { seed: 3 });
  expect(parts.map(({ length }) => length)).toEqual([6, 2, 2]);
  expect(parts.flatMap(all).sort()).toEqual(all(numbers(10)));
  expect(randomSplit(numbers(10), [6, 2, 2], { seed: 3 }).map(all)).toEqual(parts.map(all));
  expect(randomSplit(numbers(10), [6, 4], { seed: 4 }).map(all)).not.toEqual(
    randomSplit(numbers(10), [6, 4], { seed: 3 }).map(all),
  );
});

test.each<[string, () => unknown]>([
  ['a sum', () => randomSplit(numbers(10), [5, 4])],
  ['a number', () => randomSplit(numbers(10), 10 as never)],
  ['a negative size', () => randomSplit(numbers(10), [11, -1])],
  ['an option', () => randomSplit(numbers(10), [10], { sed: 1 } as never)],
  ['an index', () => new Subset(numbers(3), [3])],
  ['an array', () => new ConcatDataset([[1, 2]] as never)],
  ['no tensor', () => new TensorDataset()],
  ['a list of tensors', () => new TensorDataset([Tensor.from([1])] as never)],
  ['another number of rows', () => new TensorDataset(Tensor.from([1, 2]), Tensor.from([1]))],
  ['a scalar', () => new TensorDataset(Tensor.from(3))],
  ['no list of rows', () => new TensorDataset(Tensor.from([1])).batch(null as never, cpu())],
  ['half a row', () => new TensorDataset(Tensor.from([1])).batch([0.5] as never, cpu())],
  ['a get', () => new ConcatDataset([numbers(2)]).get(2)],
])('%s out of place is refused', (_, body) => expect(body).toThrow(DsError));

test('worker threads serve the parts that they can build', async () => {
  const module = join(__dirname, 'worker-datasets.ts');
  const numbersDataset = (length: number) =>
    workerDataset<number>({ module, export: 'numbers', args: [length] });
  const both = new ConcatDataset([numbersDataset(7), new Subset(numbersDataset(9), [8, 2, 5])]);
  const part = randomSplit(both, [0.8, 0.2], { seed: 3 })[0] as Dataset<number>;
  const options = { batchSize: 3, collate: (samples: number[]) => samples };
  const expected = [...new DataLoader(part, options)];
  expect(expected.flat()).toHaveLength(8);
  const workerThread = { execArgv: ['-r', join(__dirname, '../support/run-typescript.cjs')] };
  await using loader = new DataLoader(part, { ...options, numWorkers: 2, workerThread });
  expect([...loader]).toEqual(expected);
  const mixed = new ConcatDataset<number>([numbersDataset(2), numbers(2)]);
  expect(() => new DataLoader(mixed, { numWorkers: 1 })).toThrow(/worker thread can build/);
});

test('rows of tensors are batches of one op each', () => {
  const before = liveTensors();
  scope(() => {
    const x = Tensor.from(
      Float32Array.from({ length: 24 }, (_, i) => i),
      { shape: [6, 2, 2] },
    );
    const y = Tensor.from(BigInt64Array.from({ length: 6 }, (_, i) => BigInt(10 * i)));
    const set = new TensorDataset(x, y.to('i64'));
    const part = new Subset(set, [5, 1, 3]);
    const [first] = [...new DataLoader(part, { batchSize: 2, shuffle: false })] as Tensor[][];
    expect(first?.map(({ shape, dtype }) => [shape, dtype])).toEqual([
      [[2, 2, 2], 'f32'],
      [[2], 'i64'],
    ]);
    expect(first?.map((tensor) => tensor.toArray())).toEqual([
      [20, 21, 22, 23, 4, 5, 6, 7],
      [50, 10],
    ]);
    expect(set.get(2).map((tensor) => tensor.toArray())).toEqual([[8, 9, 10, 11], [20]]);
    expect(() => set.get(6)).toThrow(DsError);
    const sum = (rows: Tensor[][]) => rows.map(([row]) => (row as Tensor).toArray());
    const [whole] = [...new DataLoader(set, { batchSize: 6, seed: 2, collate: sum })];
    expect(whole?.flat().sort((a, b) => a - b)).toEqual(x.toArray());
  });
  expect(liveTensors()).toBe(before);
});
