// Tests that invalid samplers, collate functions and samples of a caller throw, as do an epoch
// without batches and a batch without values.
import { DataLoader, Sampler } from '../../lib/data/index.js';
import { type DsConfig, initialize, nn, type Tensor } from '../../lib/index.js';

const numbers = { length: 4, get: (index: number) => index };
const list = (samples: number[]): number[] => samples;

class Given extends Sampler {
  readonly length = 4;
  constructor(private readonly given: () => unknown) {
    super();
  }
  order(): Uint32Array {
    return this.given() as Uint32Array;
  }
}

const serveParts = (given: () => unknown): number[][] => [
  ...new DataLoader(numbers, { batchSize: 2, sampler: new Given(given), collate: list }),
];

test('a sampler may give its order as an array or a generator', () => {
  const expected = [[3, 0], [2]];
  expect(serveParts(() => [3, 0, 2])).toEqual(expected);
  expect(
    serveParts(function* () {
      yield* [3, 0, 2];
    }),
  ).toEqual(expected);
});

test.each([
  ['beyond the dataset', () => Uint32Array.of(0, 4), 'from 0 to 3, got 4 at 1'],
  ['below it', () => [-1], 'from 0 to 3, got -1 at 0'],
  ['no number', () => [0, 1, 'a'], 'from 0 to 3, got "a" at 2'],
  ['no list', () => undefined, 'a list or an iterable of sample indices, got undefined'],
])('an order with a value that is %s is refused', (_, order, message) => {
  expect(() => serveParts(order)).toThrow(
    expect.objectContaining({ code: 'DS_DATA', message: expect.stringContaining(message) }),
  );
});

test('a plain for over batches that are promises is refused', async () => {
  const collate = async (samples: number[]) => samples;
  const loader = new DataLoader(numbers, { batchSize: 4, shuffle: false, collate });
  expect(() => [...loader]).toThrow(
    'expected a dataset with synchronous get(), got a collate function that takes time. Iterate with `for await`.',
  );
  for await (const batch of loader) expect(batch).toEqual([0, 1, 2, 3]);
});

test.each([
  ['Map', new Map([[1, 2]])],
  ['Date', new Date(0)],
  ['ArrayBuffer', new ArrayBuffer(8)],
  ['DataView', new DataView(new ArrayBuffer(8))],
])('a sample that is a %s is refused', (name, sample) => {
  const loader = new DataLoader({ length: 1, get: () => ({ x: sample }) });
  expect(() => [...loader]).toThrow(`sample.x: expected numbers or arrays, got ${name}.`);
});

test('unsigned integers of 64 bits are i64', () => {
  const loader = new DataLoader<unknown, Tensor>({
    length: 1,
    get: () => BigUint64Array.of(2n ** 33n + 1n),
  });
  const [batch] = [...loader];
  expect(batch?.dtype).toBe('i64');
  expect(batch?.toArray()).toEqual([2 ** 33 + 1]);
  batch?.dispose();
});

test.each([[5], [[1, 2]], [(function* () {})()]])(
  'initialize() names trainingData: %p',
  (input) => {
    const config: DsConfig = { train_batch_size: 1, optimizer: { type: 'AdamW', params: {} } };
    const trainingData = input as never;
    return expect(
      initialize({ model: new nn.Linear(1, 1), config, trainingData }),
    ).rejects.toMatchObject({
      code: 'DS_ARGUMENT',
      op: 'initialize trainingData',
      expected: 'a dataset: an object with length and get(index)',
    });
  },
);
