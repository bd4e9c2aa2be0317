// Subset, ConcatDataset and randomSplit: which samples they have, and what they refuse.
import { ConcatDataset, DataLoader, randomSplit, Subset } from '../../lib/data/index.js';
import { DsError } from '../../lib/errors.js';

const numbers = (length: number, start = 0) => ({ length, get: (i: number) => start + i });
const all = (set: { length: number; get(i: number): unknown }): unknown[] =>
  Array.from({ length: set.length }, (_, i) => set.get(i));

test('parts and rows of datasets', () => {
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
  ['a get', () => new ConcatDataset([numbers(2)]).get(2)],
])('%s out of place is refused', (_, body) => expect(body).toThrow(DsError));
