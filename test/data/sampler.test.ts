// Tests that the order of samplers depends only on seed, epoch and rank, and is dealt to ranks as
// in PyTorch.
import { shuffledOrder } from '../../lib/data/order.js';
import {
  DistributedSampler,
  RandomSampler,
  SequentialSampler,
  WeightedRandomSampler,
} from '../../lib/data/sampler.js';
import { random } from '../support/random.js';

const ranksOf = (samples: number, worldSize: number, more: object = {}): DistributedSampler[] =>
  Array.from(
    { length: worldSize },
    (_, rank) => new DistributedSampler(samples, { rank, worldSize, ...more }),
  );

const sort = (values: Iterable<number>): number[] => [...values].sort((a, b) => a - b);
const range = (n: number): number[] => Array.from({ length: n }, (_, i) => i);

test('SequentialSampler and RandomSampler visit every sample', () => {
  const sequential = new SequentialSampler(5);
  expect([...sequential]).toEqual([0, 1, 2, 3, 4]);
  expect([...sequential.order(3)]).toEqual([3, 4]);
  const random = new RandomSampler(50, { seed: 4 });
  expect([...random]).toEqual([...shuffledOrder(50, 4, 0)]);
  random.setEpoch(3);
  expect([...random.order(20)]).toEqual([...shuffledOrder(50, 4, 3)].slice(20));
});

// From torch.utils.data.DistributedSampler with shuffle=False.
test.each([
  [
    10,
    3,
    false,
    [
      [0, 3, 6, 9],
      [1, 4, 7, 0],
      [2, 5, 8, 1],
    ],
  ],
  [
    10,
    3,
    true,
    [
      [0, 3, 6],
      [1, 4, 7],
      [2, 5, 8],
    ],
  ],
  [
    9,
    3,
    true,
    [
      [0, 3, 6],
      [1, 4, 7],
      [2, 5, 8],
    ],
  ],
  [2, 5, false, [[0], [1], [0], [1], [0]]],
  [2, 5, true, [[], [], [], [], []]],
])('%d samples on %d ranks, dropLast %s', (samples, worldSize, dropLast, expected) => {
  const ranks = ranksOf(samples, worldSize, { shuffle: false, dropLast });
  expect(ranks.map((sampler) => [...sampler])).toEqual(expected);
  expect(ranks.map(({ length }) => length)).toEqual(expected.map(({ length }) => length));
});

test('ranks get disjoint parts of all samples except padding, for any size', () => {
  for (let round = 0; round < 200; ++round) {
    const samples = 1 + Math.floor(random() * 97);
    const worldSize = 1 + Math.floor(random() * 9);
    const dropLast = round % 2 === 1;
    const ranks = ranksOf(samples, worldSize, { seed: round, dropLast });
    for (const sampler of ranks) sampler.setEpoch(round);
    const all = ranks.flatMap((sampler) => [...sampler]);
    const fullValues = [...shuffledOrder(samples, round, round)];
    const dealt = range(all.length).map(
      (i) => ranks[i % worldSize]?.order(0)[Math.floor(i / worldSize)],
    );
    const padded = range(all.length).map((i) => fullValues[i % samples]);
    expect(dealt).toEqual(padded);
    if (!dropLast) expect(new Set(all).size).toBe(samples);
    else expect(new Set(all).size).toBe(all.length);
    expect(Math.abs(all.length - samples)).toBeLessThan(worldSize);
  }
});

test('from any position, another world size draws exactly the remaining samples', () => {
  for (let round = 0; round < 100; ++round) {
    const samples = 20 + Math.floor(random() * 40);
    const from = 1 + (round % 5);
    const served = from * Math.floor(random() * (samples / from));
    const to = 1 + Math.floor(random() * 6);
    const rest = ranksOf(samples, to, { seed: 1 }).flatMap((s) => [...s.order(served)]);
    const fullValues = [...shuffledOrder(samples, 1, 0)];
    const expected = fullValues.slice(served);
    const padding = Math.ceil(expected.length / to) * to - expected.length;
    expect(sort(rest)).toEqual(sort([...expected, ...fullValues.slice(0, padding)]));
  }
});

test('seed and epoch define the order, and a state restores both', () => {
  const [a, b] = [new RandomSampler(30, { seed: 1 }), new RandomSampler(30, { seed: 2 })];
  expect([...a]).not.toEqual([...b]);
  a.setEpoch(6);
  b.loadStateDict(JSON.parse(JSON.stringify(a.stateDict())));
  expect([...b]).toEqual([...a]);
  const ranks = ranksOf(30, 3, { seed: 9 });
  for (const sampler of ranks) sampler.loadStateDict(a.stateDict());
  expect(sort(ranks.flatMap((s) => [...s]))).toEqual(range(30));
  expect([...(ranks[0] as DistributedSampler)][0]).toBe([...a][0]);
});

test('bad arguments and states of another kind are refused', () => {
  const options = { rank: 0, worldSize: 2 };
  expect(() => new DistributedSampler(5, { rank: 2, worldSize: 2 })).toThrow(
    /below the world size 2/,
  );
  expect(() => new DistributedSampler(5, { rank: -1, worldSize: 2 })).toThrow(/rank/);
  expect(() => new DistributedSampler(5, { rank: 0, worldSize: 0 })).toThrow(/worldSize/);
  expect(() => new RandomSampler(2 ** 32)).toThrow(expect.objectContaining({ code: 'DS_LIMIT' }));
  expect(() => new RandomSampler(5).setEpoch(1.5)).toThrow(/setEpoch/);
  const natural = new SequentialSampler(5).stateDict();
  expect(() => new DistributedSampler(5, options).loadStateDict(natural)).toThrow(
    /a position in a shuffled order, got a position in the natural order/,
  );
  expect(() => new SequentialSampler(5).loadStateDict({ epoch: 0, seed: 3 })).toThrow(
    expect.objectContaining({ code: 'DS_CHECKPOINT' }),
  );
});

test('WeightedRandomSampler draws by weight, differently in every epoch, the same for a seed', () => {
  const weights = [1, 0, 3, 6];
  const sampler = new WeightedRandomSampler(weights, { samples: 20_000, seed: 4 });
  const counts = [0, 0, 0, 0];
  for (const index of sampler) counts[index]!++;
  weights.forEach((weight, i) => {
    expect(Math.abs(counts[i]! / 20_000 - weight / 10)).toBeLessThan(0.015);
  });
  const again = new WeightedRandomSampler(Float32Array.from(weights), { samples: 20_000, seed: 4 });
  expect([...again]).toEqual([...sampler]);
  again.setEpoch(1);
  expect([...again]).not.toEqual([...sampler]);
});

test('WeightedRandomSampler without replacement visits none twice and prefers the heavy', () => {
  const weights = Array.from({ length: 10 }, (_, i) => i);
  let first = 0;
  for (let seed = 0; seed < 2000; ++seed) {
    const drawn = [...new WeightedRandomSampler(weights, { samples: 9, replacement: false, seed })];
    expect(new Set(drawn).size).toBe(9);
    expect(drawn).not.toContain(0);
    if (drawn[0] === 9) first++;
  }
  expect(Math.abs(first / 2000 - 9 / 45)).toBeLessThan(0.04);
});

test('ranks share the draws of a WeightedRandomSampler, and go on at another world size', () => {
  const weights = [5, 1, 1, 2, 2, 9, 1];
  const make = (rank: number, worldSize: number) =>
    new WeightedRandomSampler(weights, { samples: 12, seed: 8, rank, worldSize });
  const fullValues = [...make(0, 1)];
  const dealt = [0, 1, 2].map((rank) => [...make(rank, 3)]);
  expect(dealt.map((ownIndices) => ownIndices.length)).toEqual([4, 4, 4]);
  expect(fullValues.map((_, i) => dealt[i % 3]![Math.floor(i / 3)])).toEqual(fullValues);
  const rest = [0, 1].map((rank) => [...make(rank, 2).order(6)]);
  expect(fullValues.slice(6).map((_, i) => rest[i % 2]![Math.floor(i / 2)])).toEqual(
    fullValues.slice(6),
  );
  const resumed = make(0, 1);
  resumed.loadStateDict({ ...make(0, 3).stateDict(), epoch: 2 });
  expect(resumed.epoch).toBe(2);
});

test.each([
  [[], {}],
  [[0, 0], {}],
  [[1, -1], {}],
  [[1, Number.NaN], {}],
  ['abc', {}],
  [[1, 0], { samples: 2, replacement: false }],
  [[1], { rank: 1 }],
  [[1], { seeds: 1 }],
])('a WeightedRandomSampler of %j with %j is refused', (weights, options) => {
  expect(() => new WeightedRandomSampler(weights as number[], options as object)).toThrow(
    /WeightedRandom/,
  );
});
